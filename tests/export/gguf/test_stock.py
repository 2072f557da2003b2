"""Float GGUF files in stock llama.cpp match transformers for every architecture and rotary type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.export.graph.graph_request import Span
from tests.export.test_architectures import LONG, SHAPES, random_tokens
from tests.export.test_parity import framework_logits
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits
from .writing import GGUF_SHAPES, context_in, export_gguf, needs_engine, value_of

pytestmark = [pytest.mark.export, needs_engine]

TABLED = 1e-2
"""Tolerance for Gemma: llama.cpp's CPU kernels compute its activation with a float16 table."""
EXACT = 1e-4
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
ROPES = {
    "llama llama3": TinyModel(more={"rope_parameters": LLAMA3}),
    "llama linear": TinyModel(more={"rope_parameters": LINEAR}),
    "llama yarn": TinyModel(more={"rope_parameters": YARN}),
    "llama yarn, weaker": TinyModel(more={"rope_parameters": {**YARN, "attention_factor": 0.7}}),
    "qwen2 yarn": TinyModel(family="qwen2", more={"rope_parameters": YARN}),
    "qwen3 yarn, weaker": TinyModel(family="qwen3", more={"rope_parameters": {**YARN, "attention_factor": 0.7}}),
    "smollm3 linear": TinyModel(family="smollm3", layers=4, more={"pad_token_id": 0, "rope_parameters": LINEAR}),
    "granite llama3": TinyModel(family="granite", more={"rope_parameters": LLAMA3}),
    "gemma3 linear": replace(
        SHAPES["gemma3"],
        more={
            **SHAPES["gemma3"].more,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 1e3}},
        },
    ),
    "llama biases": TinyModel(more={"attention_bias": True, "mlp_bias": True}),
}


def largest_error(
    tiny: TinyModel,
    folder: Path,
    *,
    span: Span | None = None,
    logits: Callable[[Path, list[int]], FloatArray] = stock_logits,
) -> float:
    """Export as floats; return the largest logit difference to transformers over the file's context, up to 100 ids."""
    model = write_model(folder / "model", tiny)
    manifest = export_gguf(model, folder / "pack", span=span or Span())
    path = folder / "pack" / manifest.models["target"].gguf
    tokens = random_tokens(min(100, context_in(path)))
    expected = framework_logits(model, tokens)
    assert expected.std() > 0.3
    return float(np.abs(logits(path, tokens) - expected).max())


@pytest.mark.parametrize("name", GGUF_SHAPES)
def test_stock_llama_cpp_matches_transformers(name: str, tmp_path: Path) -> None:
    """The text is four times as long as a supported window; an unsupported window ends the file's context."""
    error = largest_error(GGUF_SHAPES[name], tmp_path)
    assert error < (TABLED if name.startswith("gemma") else EXACT)


@pytest.mark.parametrize("name", ROPES)
def test_stock_llama_cpp_matches_transformers_for_every_rope_type(name: str, tmp_path: Path) -> None:
    assert largest_error(ROPES[name], tmp_path) < (TABLED if name.startswith("gemma") else EXACT)


@pytest.mark.parametrize("long", [False, True])
def test_stock_llama_cpp_matches_transformers_for_long_rope(long: bool, tmp_path: Path) -> None:
    """The file contains the factors of the pack's graphs and uses them for every text length."""
    assert largest_error(LONG, tmp_path, span=Span(long_rope=long)) < EXACT
    path = tmp_path / "pack" / "target" / "model.gguf"
    assert value_of(path, "phi3.context_length") == (256 if long else 64)


@pytest.mark.parametrize("name", ["mistral", "phi3", "qwen2 some windows", "qwen3 tied some windows"])
def test_gguf_export_limits_the_context_to_unsupported_windows(name: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SHAPES[name])
    entry = export_gguf(model, tmp_path / "pack").models["target"]
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
