"""Float GGUF files in stock llama.cpp match transformers for every architecture and rotary type."""

from collections.abc import Callable
from pathlib import Path

import pytest

from edgedecode.errors import ExportError
from tests.export.conftest import Floats
from tests.export.shapes import IN_LLAMA_CPP, LLAMA3, SHAPES
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits
from .writing import export_gguf, largest_error, long_rope, needs_engine, value_of

pytestmark = [pytest.mark.export, needs_engine]

TABLED = 1e-2
"""Tolerance for Gemma: llama.cpp's CPU kernels compute its activation with a float16 table."""
EXACT = 1e-4


@pytest.mark.parametrize("name", IN_LLAMA_CPP)
def test_stock_llama_cpp_matches_transformers(name: str, floats: Callable[[str], Floats]) -> None:
    """The text is four times as long as a supported window; an unsupported window ends the file's context."""
    assert largest_error(floats(name), stock_logits) < (TABLED if name.startswith("gemma") else EXACT)


def test_stock_llama_cpp_matches_transformers_for_long_rope(tmp_path: Path) -> None:
    """The file contains the factors of the pack's graphs and uses them for every text length."""
    made = long_rope(tmp_path)
    assert largest_error(made, stock_logits) < EXACT
    assert value_of(made.pack / made.entry.gguf, "phi3.context_length") == 64


@pytest.mark.parametrize("name", ["mistral", "phi3", "qwen2 some windows", "qwen3 tied some windows"])
def test_gguf_export_limits_the_context_to_unsupported_windows(name: str, floats: Callable[[str], Floats]) -> None:
    entry = floats(name).entry
    assert entry.context == 256
    assert "the GGUF file's context is 24 of 256 tokens" in entry.notes[0]


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (SHAPES["gemma2"], "scales queries by the head size 16, this model by query_pre_attn_scalar 24"),
        (TinyModel(family="qwen3", more={"rope_parameters": LLAMA3}), "does not support RoPE of type 'llama3'"),
        (TinyModel(more={"hidden_act": "gelu"}), "has the activation silu, not 'gelu'"),
        (
            TinyModel(family="smollm3", layers=2, more={"pad_token_id": 0, "no_rope_layers": [1, 0]}),
            "has no RoPE in every 4th layer",
        ),
    ],
)
def test_gguf_export_refuses_what_llama_cpp_computes_differently(tiny: TinyModel, message: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", tiny)
    with pytest.raises(ExportError, match=message):
        export_gguf(model, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
