"""What a manifest says of a model's activations: how many bits each product gets, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedecode.typed_json import Amount, Share

__all__ = ["ActivationsEntry", "ActivationsWay", "ProductError"]


@dataclass(frozen=True, slots=True)
class ProductError:
    """What rounding a product's inputs to 8 and to 16 bits puts into its outputs, as a share of what they vary by."""

    at8: Amount
    at16: Amount


@dataclass(frozen=True, slots=True)
class ActivationsWay:
    """The whole model with all products at one width, or as chosen: how it does beside float activations."""

    agreement: Share
    """Share of positions whose leading token is that of float activations."""
    step_ms: Amount | None = None
    """A pass over one row; None: not measured, as for the times below."""
    c4: Amount | None = None
    """What a pass over 4 rows costs, in passes over one."""
    c8: Amount | None = None


@dataclass(frozen=True, slots=True)
class ActivationsEntry:
    """The widths of a model's activations."""

    asked: str
    """`auto` or `16`: where `8` was asked for, nothing is measured and there is no entry."""
    wide: tuple[str, ...]
    """The products with 16 bits, as `projection_name` names them: those that read one input share a name."""
    products: Mapping[str, ProductError] = field(default_factory=dict)
    ways: Mapping[str, ActivationsWay] = field(default_factory=dict)
    """By `8`, `16` (all products so) and, where that is neither, `chosen`."""
    text: str = ""
    """What it was measured on, in words."""
    kernels: str = ""
    """The kernels that ran; empty: the engine's own, which have float activations in the place of 16 bits."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.wide) - set(self.products)):
            raise ValueError(f"wide names {unknown[0]!r}, which is not among its products")

    @property
    def way(self) -> ActivationsWay | None:
        """Return how the model does as chosen."""
        return self.ways.get("chosen") or self.ways.get("8" if not self.wide else "16")
