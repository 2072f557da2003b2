"""Print every architecture's parity with stock llama.cpp: `python -m tests.export.gguf.parity_table`.

Floats are compared with transformers, blocks with transformers on the dequantized weights; the remaining error is
llama.cpp's rounding of activations to 8 bits. Random weights; see test_architectures.py for the shapes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from transformers.utils import logging

from tests.export.conftest import recipe
from tests.export.test_architectures import random_tokens
from tests.export.test_parity import framework_logits
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits
from .test_blocks import exact_logits
from .writing import GGUF_SHAPES, context_in, export_gguf

COLUMNS = ("positions", "float: largest error", "Q8_0: rms error", "Q4_0: rms error")


def measured(name: str, tiny: TinyModel) -> list[str]:
    """Export at three widths and run a text that fills the file's context, up to 100 ids."""
    cells = [name]
    with tempfile.TemporaryDirectory() as place:
        folder = write_model(Path(place) / "model", tiny)
        for bits in (32, 8, 4):
            pack = Path(place) / f"pack{bits}"
            path = pack / export_gguf(folder, pack, stored=recipe(bits)).models["target"].gguf
            tokens = random_tokens(min(100, context_in(path)))
            floats = bits == 32
            expected = framework_logits(folder, tokens) if floats else exact_logits(folder, tokens, bits=bits)
            error = stock_logits(path, tokens) - expected
            cells += [str(len(tokens)), f"{np.abs(error).max():.0e}"] if floats else []
            cells += [] if floats else [f"{np.sqrt((error**2).mean()) / expected.std():.1%}"]
    return cells


def main() -> None:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    print("| architecture | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, tiny in {"qwen2": TinyModel(family="qwen2"), **GGUF_SHAPES}.items():
        print("| " + " | ".join(measured(name, tiny)) + " |", flush=True)


if __name__ == "__main__":
    main()
