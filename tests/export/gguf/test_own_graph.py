"""GGUF files on our own kernels, whose graph is built from the header, match transformers for every architecture."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.export.graph.graph_request import Span
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.conftest import recipe
from tests.export.test_architectures import LONG, random_tokens
from tests.export.test_parity import framework_logits
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits, stock_quantize
from .test_import_back import imported
from .test_stock import ROPES, largest_error
from .writing import GGUF_SHAPES, WIDE, context_in, export_gguf, needs_engine

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT = 2e-4


def open_file(path: Path, out: Path) -> LanguageModel:
    """Import the file and open it on ONNX Runtime."""
    manifest: Manifest = imported(path, out)
    assert not manifest.models["target"].graphs
    entry = manifest.located("target")
    return find_runtime("onnx").open(
        ModelRequest(
            entry,
            out,
            name="target",
            vocabulary_size=manifest.vocabulary_size,
            budget=Budget(),
            threads=1,
            provider="cpu",
        )
    )


def logits_in(model: LanguageModel, tokens: list[int], *, width: int) -> FloatArray:
    """Return the logits of all tokens, in passes of `width` rows."""
    state = model.new_state(len(tokens))
    try:
        parts = [
            model.forward(tokens[start : start + width], state, rows="all").logits.copy()
            for start in range(0, len(tokens), width)
        ]
    finally:
        state.close()
    return np.concatenate(parts)


def own_logits(path: Path, tokens: list[int]) -> FloatArray:
    """Return the logits of a file on our own kernels, in one pass."""
    with closing(open_file(path, path.parent / "imported")) as opened:
        assert opened.card.row_invariant
        return logits_in(opened, tokens, width=len(tokens))


@pytest.mark.parametrize("name", GGUF_SHAPES)
def test_own_graph_matches_transformers(name: str, tmp_path: Path) -> None:
    assert largest_error(GGUF_SHAPES[name], tmp_path, logits=own_logits) < EXACT


@pytest.mark.parametrize("name", ROPES)
def test_own_graph_matches_transformers_for_every_rope_type(name: str, tmp_path: Path) -> None:
    assert largest_error(ROPES[name], tmp_path, logits=own_logits) < EXACT


@pytest.mark.parametrize("long", [False, True])
def test_own_graph_matches_transformers_for_long_rope(long: bool, tmp_path: Path) -> None:
    assert largest_error(LONG, tmp_path, span=Span(long_rope=long), logits=own_logits) < EXACT


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
    shape = TinyModel(tied=True) if family == "llama tied" else GGUF_SHAPES.get(family, TinyModel(family="qwen2"))
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
    with closing(open_file(path, out)) as opened:
        found = [logits_in(opened, tokens_for(path), width=width) for width in (60, 7, 1)]
        assert opened.card.row_invariant
    assert all(np.array_equal(found[0], other) for other in found[1:])
    return found[0]


def likeness(found: FloatArray, expected: FloatArray) -> float:
    return float(np.corrcoef(found.ravel(), expected.ravel())[0, 1])
