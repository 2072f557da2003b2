"""What a manifest says of a LoRA adapter that lies in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.typed_json import Count, Finite, Positive

__all__ = ["AdapterEntry"]


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A LoRA adapter as a GGUF file. Its size and digest stand where its file is listed."""

    file: str
    """A name of `Manifest.files` or `Manifest.outside`, or an absolute path once located."""
    role: str
    """The model it was made for."""
    rank: Positive
    """The largest of its matrices."""
    alpha: Finite
    """The engine scales each product by alpha over the product's own rank; 0: not at all."""
    modules: tuple[str, ...]
    """The projections it changes, by their names in PEFT's `target_modules`."""
    invocation: tuple[Count, ...] = ()
    """Activated LoRA: the tokens from which on it applies; empty: everywhere."""
