"""What a drafter declares and needs: its source, and the parts of a session that it may use."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.model import LanguageModel, State
from edgedecode.memory.budget import Budget, Holder
from edgedecode.sampling.probs import SharedNoise
from edgedecode.sampling.row_draw import NumpyRowDraw, RowDraw
from edgedecode.sampling.weights import SamplingOptions

from .model_state import ModelStates

__all__ = ["ADD_DRAFT", "EXPECTED", "DraftSetting", "DrafterSource", "ForeignDraft", "PlannedSource", "Scheduled"]

ADD_DRAFT = "for a GGUF file name one with --draft, or export the pack with --draft"
"""What to do where a draft model is needed and there is none."""
EXPECTED = "expected"
"""The name of the drafter that takes part in answers for which a text is given; no entry point has it."""


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """The parts of a session that a drafter may use."""

    budget: Budget
    sampling: SamplingOptions
    vocabulary_size: int
    capacity: int
    """Positions of the session's target state."""
    draft_model: LanguageModel | None = None
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
    target_state: State | None = None
    """The target's state, of which a drafting head reads more than tokens. It belongs to the session."""


class Scheduled(Enum):
    """Where the scheduler may choose a drafter that no option names."""

    ALWAYS = "always"
    WITHOUT_DRAFT = "in packs without a draft model"
    BY_NAME = "never"


class DrafterSource(ABC):
    """Opens drafters; entry points of the group `edgedecode.drafters` name callables that return a source.

    A source lives as long as its pair. It owns the stores that sessions share, and leases their memory once. Classes
    that derive from this one declare what differs from the values here.
    """

    name: str
    scheduled: Scheduled = Scheduled.ALWAYS
    needs_model: bool = False
    """Its drafters run the pack's draft model."""
    samples: bool = False
    """Its drafters sample from their own distribution and return it, as the ratio rule needs."""
    branches: bool = False
    """Its drafts are trees: it is chosen by name, with a fixed size, and the target's state has room for them."""

    @abstractmethod
    def open(self, setting: DraftSetting) -> Drafter:
        """Open a drafter for one session. Raises CapabilityError if the pair lacks what it needs."""

    def close(self) -> None:  # noqa: B027 (most sources share nothing)
        """Release what sessions share. Idempotent; a drafter opened afterwards starts empty."""


@runtime_checkable
class ForeignDraft(Protocol):
    """A draft model whose tokens are not the target's, and which therefore makes its own drafter."""

    def drafter(self, setting: DraftSetting) -> Drafter:
        """Open one. Raises CapabilityError for a setting that needs the same tokens."""
        ...


@runtime_checkable
class PlannedSource(Protocol):
    """A source of drafters that lease memory in addition to the draft model's."""

    def holders(self, *, capacity: int, vocabulary_size: int) -> tuple[Holder, ...]:
        """Return the memory that a session's drafter will take."""
        ...
