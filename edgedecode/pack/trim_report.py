"""What a manifest says of a draft's trimmed vocabulary: its size, its map, and what it was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.typed_json import Count, Finite, Positive, Share

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

    tokens: Count
    """How long the text was."""
    coverage: Share
    """Share of its tokens that are kept."""
    acceptance: Finite
    """Tokens a round with the trimmed draft, the target's own included, at the draft length `TrimEntry.length`."""
    acceptance_full: Finite
    """The same with the whole draft."""
    speed_up: Finite | None = None
    """Times over plain decoding at each one's best length, predicted from measured costs; None: not measured."""
    speed_up_full: Finite | None = None
    mbsu: Finite | None = None
    """The same where memory alone decides."""
    mbsu_full: Finite | None = None
    measured: Finite | None = None
    """Times over plain decoding of whole answers, where they were timed."""
    measured_full: Finite | None = None


@dataclass(frozen=True, slots=True)
class TrimEntry:
    """A draft's smaller head. Sizes and digests of its files stand where files are listed."""

    size: Positive
    token_ids: str
    """The map from its rows to ids: int32, little-endian, ascending."""
    gguf: str = ""
    """The trimmed draft as a GGUF file of its own; empty: there is none."""
    recommended: bool = False
    """Whether the report said that it wins: then it drafts by default."""
    runtime: str = ""
    """The engine it was measured on; on others it is no default."""
    bound: Finite | None = None
    """The share of held-out text that a recommended size knows at least."""
    step_share: Finite | None = None
    """What a drafted token takes with it, as a share of what it takes with the whole head."""
    length: Positive = 4
    """The draft length that `TrimCategory.acceptance` speaks of."""
    calibration: str = ""
    """What tokens were counted on, in a line."""
    categories: Mapping[str, TrimCategory] | None = None
    """None: no report was made."""
    warnings: tuple[str, ...] = ()
    """Where it loses, a sentence each."""
