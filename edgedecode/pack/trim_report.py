"""What a manifest says of a draft's trimmed vocabulary: its size, its map, and what it was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.errors import ManifestError

from .entries import plain_path
from .json_fields import Fields

__all__ = ["TRIM_NAMES", "TrimCategory", "TrimEntry"]

TRIM_NAMES = {
    "heads": ("heads.onnx", "heads-2.onnx"),
    "trim": ("trim.ids", "trim-2.ids"),
    "gguf": ("trim.gguf", "trim-2.gguf"),
}
"""Each of a trim's files has two names: what replaces a file never has its name, so that both can lie there for a
moment."""


@dataclass(frozen=True, slots=True)
class TrimCategory:
    """A kind of text: how much of it the trimmed vocabulary knows, and what drafts were worth with it and without."""

    tokens: int
    """How long the text was."""
    coverage: float
    """Share of its tokens that are kept."""
    acceptance: float
    """Tokens a round with the trimmed draft, the target's own included, at the draft length `TrimEntry.length`."""
    acceptance_full: float
    """The same with the whole draft."""
    speed_up: float | None
    """Times over plain decoding at each one's best length, predicted from measured costs; None: not measured."""
    speed_up_full: float | None
    mbsu: float | None = None
    """The same where memory alone decides."""
    mbsu_full: float | None = None
    measured: float | None = None
    """Times over plain decoding of whole answers, where they were timed."""
    measured_full: float | None = None

    @classmethod
    def of(cls, fields: Fields) -> TrimCategory:
        return cls(
            tokens=fields.integer("tokens", low=0),
            coverage=_share(fields, "coverage"),
            acceptance=fields.number("acceptance"),
            acceptance_full=fields.number("acceptance_full"),
            speed_up=fields.optional_number("speed_up"),
            speed_up_full=fields.optional_number("speed_up_full"),
            mbsu=fields.optional_number("mbsu"),
            mbsu_full=fields.optional_number("mbsu_full"),
            measured=fields.optional_number("measured"),
            measured_full=fields.optional_number("measured_full"),
        )


@dataclass(frozen=True, slots=True)
class TrimEntry:
    """A draft's smaller head. Sizes and digests of its files stand where files are listed."""

    size: int
    token_ids: str
    """The map from its rows to ids: int32, little-endian, ascending."""
    gguf: str = ""
    """The trimmed draft as a GGUF file of its own; empty: there is none."""
    recommended: bool = False
    """Whether the report said that it wins: then it drafts by default."""
    runtime: str = ""
    """The engine it was measured on; on others it is no default."""
    bound: float | None = None
    """The share of held-out text that a recommended size knows at least."""
    step_share: float | None = None
    """What a drafted token takes with it, as a share of what it takes with the whole head."""
    length: int = 4
    """The draft length that `TrimCategory.acceptance` speaks of."""
    calibration: str = ""
    """What tokens were counted on, in a line."""
    categories: Mapping[str, TrimCategory] | None = None
    """None: no report was made."""
    warnings: tuple[str, ...] = ()
    """Where it loses, a sentence each."""

    @classmethod
    def of(cls, fields: Fields) -> TrimEntry:
        """Check a parsed entry field by field. Raises ManifestError naming the field."""
        told = fields.values.get("categories") is not None
        return cls(
            size=fields.integer("size", low=1),
            token_ids=plain_path(fields.text("token_ids")),
            gguf=plain_path(gguf) if (gguf := fields.optional_text("gguf")) else "",
            recommended=_truth(fields, "recommended"),
            runtime=fields.optional_text("runtime") or "",
            bound=fields.optional_number("bound"),
            step_share=fields.optional_number("step_share"),
            length=fields.integer("length", low=1),
            calibration=fields.optional_text("calibration") or "",
            categories={name: TrimCategory.of(child) for name, child in fields.children("categories")}
            if told
            else None,
            warnings=fields.texts("warnings"),
        )


def _share(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if not 0 <= value <= 1:
        raise ManifestError(f"{fields.where}.{key} must lie between 0 and 1, not {value}")
    return value


def _truth(fields: Fields, key: str) -> bool:
    value = fields.values.get(key)
    if not isinstance(value, bool):
        raise ManifestError(f"{fields.where}.{key} must be true or false, not {str(value)[:60]!r}")
    return value
