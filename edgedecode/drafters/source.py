"""The interfaces of drafter sources, and the parts of a session that a drafter may use."""

from __future__ import annotations

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
    """The parts of a session that a drafter may use."""

    budget: Budget
    sampling: SamplingOptions
    vocabulary_size: int
    capacity: int
    """Positions of the session's target state."""
    draft_model: LanguageModel | None
    ends: frozenset[int] = frozenset()
    """End-of-sequence ids; no draft runs past one."""
    sampled: bool = False
    """Whether the verifier applies the ratio rule, so that a model drafter must sample from its own distribution."""
    noise: SharedNoise | None = None
    """The noise that the target's tokens are sampled with; None: unknown, or the target is not sampled."""
    tree: bool = False
    """Whether trees are wanted and the target supports them."""
    draft_max: int = 0
    """The most tokens a draft may have."""
    row_draw: RowDraw = field(default_factory=NumpyRowDraw)
    """Samples a token from a row of logits."""
    states: ModelStates = field(default_factory=ModelStates)
    """The session's draft model states, which its drafters share."""


class DrafterSource(Protocol):
    """Opens drafters; entry points of the group `edgedecode.drafters` name callables that return a source.

    A source lives as long as its pair. It owns the stores that sessions share, and leases their memory once.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs_model(self) -> bool:
        """Whether its drafters run the pack's draft model."""
        ...

    def open(self, setting: DraftSetting) -> Drafter:
        """Open a drafter for one session. Raises CapabilityError if the pair lacks what it needs."""
        ...

    def close(self) -> None:
        """Release what sessions share. Idempotent; a drafter opened afterwards starts empty."""
        ...


@runtime_checkable
class PlannedSource(Protocol):
    """A source of drafters that lease memory in addition to the draft model's."""

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        """Return the memory that a session's drafter will take."""
        ...
