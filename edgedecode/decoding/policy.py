"""The interface of a drafting policy: it gets signals, offers, scores and round costs, and returns plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedecode.errors import InputError

from .model import AdapterUse

__all__ = [
    "MAX_DRAFT",
    "FixedLength",
    "Offer",
    "Plan",
    "Policy",
    "RoundCost",
    "Score",
    "Signals",
    "is_structured",
    "kind_of",
]


@dataclass(frozen=True, slots=True)
class Offer:
    """A free drafter's proposal for the next round: its length and the length of its lookup match, no tokens."""

    drafter: str
    length: int
    match: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of an offer or a draft, once the tokens at its positions were emitted, used or not.

    accepted == length is censored: a longer proposal might have matched further.
    """

    drafter: str
    length: int
    accepted: int
    match: int = 0


NO_DRAFTER, ASKED = "none", "asked"
NO_SPEED_UP = "no speed-up expected"
"""Reason of plans without a draft because none is expected to be faster than plain decoding."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The cost of one round: the target's pass over `width` tokens, the drafting before it, and host overhead."""

    width: int
    pass_seconds: float
    host_seconds: float = 0.0
    drafter: str = NO_DRAFTER
    """The drafter's name; `NO_DRAFTER`: none was asked; `ASKED`: drafters were asked, and nothing was drafted."""
    drafted: int = 0
    accepted: int = 0
    read: int = 0
    """Tokens the drafter's model had to prefill before it could propose."""
    draft_seconds: float = 0.0
    at_once: int = 0
    """As in `Draft`."""
    match: int = 0
    cut: int = 0
    """Drafted tokens that the target did not verify, because a grammar refuses them; the first would be wrong."""
    stopped: bool = False
    """The drafter's model ended the draft before its limit, because it was not sure enough of the next token."""
    repeats: int = 0
    """Untimed plain rounds after this plain one: while resting, only the first round is timed."""

    @property
    def steps(self) -> int:
        """Timed passes of the drafter's model without prefill, or rows of the one: one for each token, also dropped."""
        return self.at_once or max(1, self.drafted + self.cut + self.stopped)


@dataclass(frozen=True, slots=True)
class Signals:
    """A policy's input before a round, JSON-serialisable."""

    context_tokens: int
    remaining_tokens: int
    """Number of tokens that may still be emitted."""
    offers: tuple[Offer, ...] = ()
    """Proposals of the free drafters."""
    unread: tuple[tuple[str, int], ...] = ()
    """Per drafter that runs a model: the number of context tokens that the model has yet to prefill."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's decision for one round. `draft_max` 0 is plain decoding."""

    draft_max: int
    drafter: str | None = None
    """The drafter's name; None: the first drafter."""
    floor: float = 0.0
    """A drafter with a model stops when the probability that the full draft is accepted falls below this."""
    read_max: int = 0
    """A drafter that is further behind than this prefills only this many of the most recent tokens; 0: all."""
    rest: int = 0
    """Number of rounds after this one that are plain and ask no drafter."""
    reason: str = ""
    """The reason for this plan, in a word or two, for statistics and traces."""


WHOLE = Plan(0)
"""The plan of direct calls of `propose`: the drafter prefills everything and stops only at its limit."""


class Policy(Protocol):
    """Chooses each round's drafter and draft length. Deterministic given its inputs: no clock, no I/O."""

    def begin(self, kind: str = "") -> int:
        """Start an answer. Return how many of its first rounds are plain and ask no drafter.

        kind: what acceptance rates depend on, the name of the target's adapter and whether a grammar restricts the
        answer; empty: neither (see `kind_of`).
        """
        ...

    def plan(self, signals: Signals) -> Plan:
        """Return what to draft in the next round."""
        ...

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """Learn from a finished round, and from proposals, used or not, whose outcome is known by now."""
        ...


def is_structured(kind: str) -> bool:
    """Return whether a grammar restricts the answers of this kind."""
    return kind.endswith("{}")


def kind_of(adapter: AdapterUse | None, *, structured: bool) -> str:
    """Return the kind of answers (see `Policy.begin`) with an adapter, or restricted by a grammar."""
    return ("" if adapter is None else adapter.name) + ("{}" if structured else "")  # no adapter's name has braces


MAX_DRAFT = 64
"""Largest draft length, in tokens, that any policy may plan."""


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same draft length; 0 is plain decoding. Raises InputError outside 0 to MAX_DRAFT."""

    draft_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 0 (no speculation) to {MAX_DRAFT}")

    def begin(self, kind: str = "") -> int:
        return 0

    def plan(self, signals: Signals) -> Plan:
        return Plan(min(self.draft_max, signals.remaining_tokens - 1), reason="fixed")

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """Do nothing: the length is fixed."""
