"""What stock llama.cpp makes of each architecture: its name there, its rotary convention, its windows. Loads nothing.

Source: llama.cpp's src/models and conversion folders, as vendored by llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.gguf.architectures import CLASSES, INTERLEAVED

__all__ = ["LAYOUTS", "Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture in llama.cpp.

    windows: it runs sliding windows. factors: the tensors that carry rotary factors; none: it takes no such tensor.
    square: it wants heads × head size to equal the hidden size. shifted: the norms' weights are stored less one.
    """

    name: str
    windows: bool = False
    factors: tuple[str, ...] = ()
    square: bool = False
    shifted: bool = False

    @property
    def interleaved(self) -> bool:
        """Whether it rotates neighbouring rows of a head, not its halves as transformers does: q and k rows move."""
        return self.name in INTERLEAVED


_FREQUENCIES = ("rope_freqs.weight",)
_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")

_LAYOUTS = (
    Layout("gemma", shifted=True),
    Layout("gemma2", windows=True, shifted=True),
    Layout("gemma3", windows=True, shifted=True),
    Layout("granite", factors=_FREQUENCIES),
    Layout("llama", factors=_FREQUENCIES),
    Layout("phi3", factors=_LONG_AND_SHORT, square=True),
    Layout("qwen2", square=True),
    Layout("qwen3"),
    Layout("smollm3"),
)
_BY_NAME = {layout.name: layout for layout in _LAYOUTS}
LAYOUTS: Mapping[str, Layout] = {architecture: _BY_NAME[name] for architecture, name in CLASSES.items()}
"""Hugging Face class → layout."""
