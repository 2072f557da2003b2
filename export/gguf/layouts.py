"""What stock llama.cpp makes of each architecture: its name there, its rotary convention, its windows. Loads nothing.

Source: llama.cpp's src/models and conversion folders, as vendored by llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LAYOUTS", "Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture in llama.cpp.

    interleaved: it rotates neighbouring rows of a head, where transformers rotates its halves: q and k rows are moved.
    windows: it runs sliding windows. factors: the tensors that carry rotary factors; none: it takes no such tensor.
    square: it wants heads × head size to equal the hidden size. shifted: the norms' weights are stored less one.
    """

    name: str
    interleaved: bool = False
    windows: bool = False
    factors: tuple[str, ...] = ()
    square: bool = False
    shifted: bool = False


_FREQUENCIES = ("rope_freqs.weight",)
_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")

LAYOUTS: Mapping[str, Layout] = {
    "GemmaForCausalLM": Layout("gemma", shifted=True),
    "Gemma2ForCausalLM": Layout("gemma2", windows=True, shifted=True),
    "Gemma3ForCausalLM": Layout("gemma3", windows=True, shifted=True),
    "GraniteForCausalLM": Layout("granite", interleaved=True, factors=_FREQUENCIES),
    "LlamaForCausalLM": Layout("llama", interleaved=True, factors=_FREQUENCIES),
    "MistralForCausalLM": Layout("llama", interleaved=True, factors=_FREQUENCIES),
    "Phi3ForCausalLM": Layout("phi3", factors=_LONG_AND_SHORT, square=True),
    "Qwen2ForCausalLM": Layout("qwen2", square=True),
    "Qwen3ForCausalLM": Layout("qwen3"),
    "SmolLM3ForCausalLM": Layout("smollm3", interleaved=True),
}
"""Hugging Face class → layout."""
