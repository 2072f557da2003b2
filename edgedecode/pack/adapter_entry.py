"""What a manifest says of a LoRA adapter that lies in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass

from .entries import plain_path
from .json_fields import Fields

__all__ = ["AdapterEntry"]


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A LoRA adapter as a GGUF file. Its size and digest stand where its file is listed."""

    file: str
    """A name of `Manifest.files` or `Manifest.outside`, or an absolute path once located."""
    role: str
    """The model it was made for."""
    rank: int
    """The largest of its matrices."""
    alpha: float
    """The engine scales each product by alpha over the product's own rank; 0: not at all."""
    modules: tuple[str, ...]
    """The projections it changes, by their names in PEFT's `target_modules`."""
    invocation: tuple[int, ...] = ()
    """Activated LoRA: the tokens from which on it applies; empty: everywhere."""

    @classmethod
    def of(cls, fields: Fields) -> AdapterEntry:
        """Check a parsed entry field by field. Raises ManifestError naming the field."""
        return cls(
            file=plain_path(fields.text("file")),
            role=fields.text("role"),
            rank=fields.integer("rank", low=1),
            alpha=fields.number("alpha"),
            modules=fields.texts("modules"),
            invocation=fields.integers("invocation") if "invocation" in fields.values else (),
        )
