"""Print the parity of every architecture: `python -m tests.export.parity_table`.

Random weights in each architecture's own configuration class; see test_architectures.py for the shapes.
"""

import tempfile
from pathlib import Path

from transformers.utils import logging

from edgedecode.pack.manifest import ModelEntry

from .conftest import export, recipe
from .shapes import ARCHITECTURAL
from .test_architectures import WAYS
from .tiny import TinyModel, write_model

COLUMNS = ("float", "int8", "int4", "kernels int8", "kernels int4")


def measured(name: str, tiny: TinyModel) -> list[str]:
    """Export at three widths; return the largest wiring error of each, then the kernels' own relative error."""
    entries: dict[int, ModelEntry] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = write_model(Path(place) / "model", tiny)
        for bits in (32, 8, 4):
            manifest = export(folder, Path(place) / f"pack{bits}", stored=recipe(bits))
            entries[bits] = manifest.models["target"]
    wiring = [f"{max(entry.parity[way] for way in WAYS):.0e}" for entry in entries.values()]
    kernels = [f"{entries[bits].parity['kernel_rms_error']:.1%}" for bits in (8, 4)]
    return [name, str(entries[32].window or "–"), *wiring, *kernels]


def main() -> None:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    print(f"largest of {', '.join(way.removesuffix('_error') for way in WAYS)}; logits' deviation 0.6 to 2.4")
    print("| architecture | window | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, tiny in ARCHITECTURAL.items():
        print("| " + " | ".join(measured(name, tiny)) + " |", flush=True)


if __name__ == "__main__":
    main()
