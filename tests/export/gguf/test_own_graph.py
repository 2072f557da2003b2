"""GGUF files on our own kernels, whose graph is built from the header, match transformers for every architecture."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.conftest import Floats, framework_logits, logits_of, opened, random_tokens, recipe
from tests.export.shapes import IN_LLAMA_CPP
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits, stock_quantize
from .test_import_back import imported
from .writing import GGUF_SHAPES, WIDE, context_in, export_gguf, largest_error, long_rope, needs_engine

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT = 2e-4


def open_file(path: Path, out: Path) -> LanguageModel:
    """Import the file and open it on ONNX Runtime."""
    manifest: Manifest = imported(path, out)
    assert not manifest.models["target"].graphs
    return opened(manifest.located("target"), out)


def own_logits(path: Path, tokens: list[int]) -> FloatArray:
    """Return the logits of a file on our own kernels, in one pass."""
    with TemporaryDirectory() as folder, closing(open_file(path, Path(folder) / "imported")) as model:
        assert model.card.row_invariant
        return logits_of(model, tokens)


@pytest.mark.parametrize("name", IN_LLAMA_CPP)
def test_own_graph_matches_transformers(name: str, floats: Callable[[str], Floats]) -> None:
    assert largest_error(floats(name), own_logits) < EXACT


def test_own_graph_matches_transformers_for_long_rope(tmp_path: Path) -> None:
    assert largest_error(long_rope(tmp_path), own_logits) < EXACT


def test_queries_grow_with_their_position_beyond_the_first_context(
    floats: Callable[[str], Floats], tmp_path: Path
) -> None:
    """Ministral 3's; a file says where, a pack's graphs end there."""
    made, tokens, path = floats("ministral3"), random_tokens(250), tmp_path / "long.gguf"
    assert made.entry.context == 128
    assert "begin to scale its queries by their positions" in made.entry.notes[-1]
    data = (made.pack / made.entry.gguf).read_bytes()
    key = b"mistral3.context_length" + (4).to_bytes(4, "little")
    assert data.count(key + (128).to_bytes(4, "little")) == 1
    path.write_bytes(data.replace(key + (128).to_bytes(4, "little"), key + (256).to_bytes(4, "little")))
    expected = framework_logits(made.root / "model", tokens)
    assert np.abs(own_logits(path, tokens) - expected).max() < EXACT
    if find_spec("llama_cpp") is not None:
        assert np.abs(stock_logits(path, tokens) - expected).max() < EXACT


@pytest.mark.parametrize(
    ("family", "bits"),
    [
        *(("llama", 8), ("llama", 4), ("llama tied", 8), ("phi3", 4), ("gemma2", 8)),
        *(("gemma3", 4), ("qwen2", 8), ("qwen3", 4), ("granite", 8), ("smollm3", 4)),
    ],
)
def test_quantized_blocks_give_the_same_bits_at_every_width(family: str, bits: int, tmp_path: Path) -> None:
    """Text that is verified in any widths is the same; the float model's logits show that they are the right ones.

    Blocks do not depend on the family: each has one of the two widths, llama both.
    """
    shape = TinyModel(tied=True) if family == "llama tied" else GGUF_SHAPES[family]
    model = write_model(tmp_path / "model", replace(shape, context=128))
    manifest = export_gguf(model, tmp_path / "pack", stored=recipe(bits))
    path = tmp_path / "pack" / manifest.models["target"].gguf
    found = same_at_every_width(path, tmp_path / "imported")
    assert likeness(found, framework_logits(model, tokens_for(path))) > (0.998 if bits == 8 else 0.86)


@needs_engine
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"])
def test_mixtures_of_llama_cpp_give_its_logits_and_the_same_bits_at_every_width(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    """Queries and values, embedding and layers have different types. llama.cpp rounds activations to 8 bits: 0.997.

    Logits of the model before quantization are like these by 0.975 for Q6_K, and by 0.3 for Q2_K.
    """
    exported = export_gguf(write_model(tmp_path / "model", replace(WIDE, tied=tied, context=128)), tmp_path / "pack")
    stock_quantize(tmp_path / "pack" / exported.models["target"].gguf, path := tmp_path / "mixed.gguf", kind=kind)
    found = same_at_every_width(path, tmp_path / "imported")
    assert likeness(found, stock_logits(path, tokens_for(path))) > 0.995


def tokens_for(path: Path) -> list[int]:
    return random_tokens(min(60, context_in(path)))


def same_at_every_width(path: Path, out: Path) -> FloatArray:
    """Return a file's logits, whose bits passes of every width have."""
    with closing(open_file(path, out)) as model:
        found = [logits_of(model, tokens_for(path), width=width) for width in (60, 7, 1)]
        assert model.card.row_invariant
    assert all(np.array_equal(found[0], other) for other in found[1:])
    return found[0]


def likeness(found: FloatArray, expected: FloatArray) -> float:
    return float(np.corrcoef(found.ravel(), expected.ravel())[0, 1])
