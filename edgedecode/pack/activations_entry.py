"""What a manifest says of a model's activations: how many bits each product gets, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedecode.errors import ManifestError

from .json_fields import Fields

__all__ = ["ActivationsEntry", "ActivationsWay", "ProductError"]


@dataclass(frozen=True, slots=True)
class ProductError:
    """What rounding a product's inputs to 8 and to 16 bits puts into its outputs, as a share of what they vary by."""

    at8: float
    at16: float

    @classmethod
    def of(cls, fields: Fields) -> ProductError:
        return cls(at8=_positive(fields, "at8"), at16=_positive(fields, "at16"))


@dataclass(frozen=True, slots=True)
class ActivationsWay:
    """The whole model with all products at one width, or as chosen: how it does beside float activations."""

    agreement: float
    """Share of positions whose leading token is that of float activations."""
    step_ms: float | None = None
    """A pass over one row; None: not measured, as for the times below."""
    c4: float | None = None
    """What a pass over 4 rows costs, in passes over one."""
    c8: float | None = None

    @classmethod
    def of(cls, fields: Fields) -> ActivationsWay:
        agreement = fields.number("agreement")
        if not 0 <= agreement <= 1:
            raise ManifestError(f"{fields.where}.agreement must lie between 0 and 1, not {agreement}")
        return cls(
            agreement=agreement,
            step_ms=_measured(fields, "step_ms"),
            c4=_measured(fields, "c4"),
            c8=_measured(fields, "c8"),
        )


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

    @property
    def way(self) -> ActivationsWay | None:
        """Return how the model does as chosen."""
        return self.ways.get("chosen") or self.ways.get("8" if not self.wide else "16")

    @classmethod
    def of(cls, fields: Fields) -> ActivationsEntry:
        """Check a parsed entry field by field. Raises ManifestError naming the field."""
        found = cls(
            asked=fields.text("asked"),
            wide=fields.texts("wide"),
            products={name: ProductError.of(child) for name, child in fields.children("products")},
            ways={name: ActivationsWay.of(child) for name, child in fields.children("ways")},
            text=fields.text("text"),
            kernels=fields.optional_text("kernels") or "",
        )
        if unknown := sorted(set(found.wide) - set(found.products)):
            raise ManifestError(f"{fields.where}.wide names {unknown[0]!r}, which is not among its products")
        return found


def _positive(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if value < 0:
        raise ManifestError(f"{fields.where}.{key} must not be negative, and is {value}")
    return value


def _measured(fields: Fields, key: str) -> float | None:
    return None if fields.values.get(key) is None else _positive(fields, key)
