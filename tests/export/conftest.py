"""Shared fixtures of the export tests, which need the training frameworks and skip without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

for _package in ("torch", "transformers", "onnxruntime_genai", "onnx_ir", "safetensors", "onnxruntime"):
    pytest.importorskip(_package, reason="the export extras are not installed")

from edgedecode.export.graph.graph_request import GraphRequest  # noqa: E402
from edgedecode.export.graph.quantize import Scheme  # noqa: E402
from edgedecode.export.graph.recipe import Recipe  # noqa: E402
from edgedecode.export.pair_export import PairRequest, export_pair  # noqa: E402
from edgedecode.export.recipes import activation_choice  # noqa: E402
from edgedecode.export.stages import Stages  # noqa: E402
from edgedecode.pack.manifest import Manifest  # noqa: E402

from .tiny import TinyModel, write_model  # noqa: E402

Export = Callable[..., Manifest]
SHORT_TEXT = 128


def recipe(bits: int, *, head_bits: int | None = None, block_size: int = 32) -> Recipe:
    """Return the recipe that the command line would create."""
    head = head_bits or (8 if bits <= 8 else bits)
    return Recipe(*(Scheme(width, block_size if width <= 8 else 0) for width in (bits, head)))


def export(
    target: Path,
    out: Path,
    *,
    draft: Path | None = None,
    noise: int = 0,
    stored: Recipe | None = None,
    graphs: GraphRequest | None = None,
    calibration: Path | None = None,
    activations: str = "8",
) -> Manifest:
    """Export as the command does; default: 8 bits (activations too), and no noise measurement."""
    request = PairRequest(
        target=str(target),
        draft=str(draft) if draft else None,
        out=out,
        recipe=stored or recipe(8),
        noise_positions=noise,
        graphs=graphs or GraphRequest(),
        calibration_text=calibration,
        activations=activations,
    )
    return export_pair(request, Stages())


@pytest.fixture(scope="module", autouse=True)
def short_measurements() -> Iterator[None]:
    """Measure activations over a short text: most tests do not check the result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activation_choice, "TOKENS", SHORT_TEXT)
        yield


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama folder; tests that change it copy it."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama", TinyModel())
