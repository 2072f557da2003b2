"""What opens drafters for a session, and what a drafter may use of that session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.model import LanguageModel
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.sampling.probs import SharedNoise
from edgedecode.sampling.row_draw import NumpyRowDraw, RowDraw
from edgedecode.sampling.weights import SamplingOptions

from .model_state import ModelStates

__all__ = ["DraftSetting", "DrafterSource", "PlannedSource"]


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """What a drafter may use when a session opens it."""

    budget: Budget
    sampling: SamplingOptions
    vocabulary_size: int
    capacity: int
    """Positions the session's target state holds."""
    draft_model: LanguageModel | None
    ends: frozenset[int] = frozenset()
    """End-of-sequence ids; no draft runs past one."""
    sampled: bool = False
    """True: the verifier applies the ratio rule, so a model drafter must draw from its own distribution."""
    noise: SharedNoise | None = None
    """The noise that the target's tokens are drawn with; None: not known, or nothing is drawn."""
    tokenizer_digest: str = ""
    """What ids that are kept on disk belong to."""
    remember: bool = False
    """Whether outputs may be kept on disk, in the user's cache."""
    tree: bool = False
    """Whether trees are wanted, and the target reads them."""
    draft_max: int = 0
    """The most tokens a draft may have."""
    row_draw: RowDraw = field(default_factory=NumpyRowDraw)
    """What draws a token from a row of logits."""
    states: ModelStates = field(default_factory=ModelStates)
    """The session's states of draft models, which drafters share."""


class DrafterSource(Protocol):
    """Opens drafters; entry points of group `edgedecode.drafters` name callables that return one.

    One source lives as long as its pair: stores that sessions share belong to it and are leased once.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs_model(self) -> bool:
        """Whether its drafters run the pack's draft model."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """What that model must offer beside its own head, as `Runtime.open` takes it: "trim"."""
        ...

    def open(self, setting: DraftSetting) -> Drafter:
        """Open a drafter for one session. Raises CapabilityError when the pair lacks what it needs."""
        ...

    def close(self) -> None:
        """Forget and give back what sessions share. Idempotent; a drafter opened after it starts afresh."""
        ...


@runtime_checkable
class PlannedSource(Protocol):
    """A source of drafters that lease memory of their own, beside the draft model's."""

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        """Return what a session's drafter takes, known before it is opened."""
        ...
