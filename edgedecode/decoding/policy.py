"""What a policy is shown and what it decides: signals, offers, scores and costs of rounds in, plans out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedecode.errors import InputError

from .tree import MOST_NODES, RankRates, TreeShape, best_tree

__all__ = ["MAX_DRAFT", "FixedLength", "FixedTree", "Offer", "Plan", "Policy", "RoundCost", "Score", "Signals"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a free drafter would propose for the next round: only its size and how sure its lookup was."""

    drafter: str
    length: int
    match: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """What became of an offer or a draft, once the tokens it spoke of were emitted, whoever had proposed them.

    accepted == length is censored: with more tokens it might have gone on.
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
    """What one round took: the target's pass over `width` tokens, the drafting before it, and the host's own work."""

    width: int
    pass_seconds: float
    host_seconds: float = 0.0
    drafter: str = NO_DRAFTER
    """Who drafted; `NO_DRAFTER`: nobody was asked; `ASKED`: drafters were, and nothing was drafted."""
    drafted: int = 0
    accepted: int = 0
    read: int = 0
    """Tokens the drafter's model had to read before it could propose."""
    draft_seconds: float = 0.0
    match: int = 0
    levels: int = 0
    """Of a tree that a drafter's model grew, a pass each; 0: it drafted a token a pass."""
    stopped: bool = False
    """The drafter's model was not sure enough of one token more, and ended the draft before its limit."""

    repeats: int = 0
    """Plain rounds after this plain one whose times were not kept: at rest nobody is asked, and little is noted."""

    @property
    def steps(self) -> int:
        """Passes of the drafter's model, without reading: one for every token, and for one that it dropped."""
        return max(1, self.levels or self.drafted + self.stopped)


@dataclass(frozen=True, slots=True)
class Signals:
    """All a policy is shown before a round, JSON-serialisable."""

    context_tokens: int
    remaining_tokens: int
    """How many tokens may still be emitted."""
    offers: tuple[Offer, ...] = ()
    """What the free drafters would propose now."""
    unread: tuple[tuple[str, int], ...] = ()
    """Per drafter with a model of its own: how many tokens of the context that has still to read."""
    rates: tuple[tuple[str, RankRates], ...] = ()
    """Of drafters that can propose trees: what their guesses are worth, where that moved since the last call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's decision for one round. `draft_max` 0 is plain decoding."""

    draft_max: int
    drafter: str | None = None
    """Whose draft; None: the first drafter there is."""
    floor: float = 0.0
    """A drafter with a model stops where the chance that its whole draft is accepted falls below this."""
    read_max: int = 0
    """A drafter further behind than this reads only this many of the newest tokens; 0: it reads all."""
    rest: int = 0
    """How many rounds after this one are plain, without asking anyone."""
    reason: str = ""
    """Why it is as it is, in a word or two, for statistics and traces."""
    shape: TreeShape | None = None
    """The tree to fill with guesses; None: the drafter's own form, mostly a chain."""


WHOLE = Plan(0)
"""No wishes to a drafter: it reads everything and stops at its limit."""


class Policy(Protocol):
    """Chooses each round's drafter and draft length: deterministic given what it was shown, no clock, no I/O."""

    def begin(self, adapter: str = "") -> int:
        """Start an answer. Return how many of its first rounds are plain and ask no drafter.

        adapter: the name of the adapter that answers; empty: none. Drafts are accepted more or less often under it.
        """
        ...

    def plan(self, signals: Signals) -> Plan:
        """Return what to draft in the next round."""
        ...

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """Learn from a round that is over, and from proposals whose tokens were emitted by now, used or not."""
        ...


MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same draft length; 0 is plain decoding. Raises InputError outside 0 to MAX_DRAFT."""

    draft_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 0 (no speculation) to {MAX_DRAFT}")

    def begin(self, adapter: str = "") -> int:
        return 0

    def plan(self, signals: Signals) -> Plan:
        return Plan(min(self.draft_max, signals.remaining_tokens - 1), reason="fixed")

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """It learns nothing."""


class FixedTree:
    """Always a tree of `nodes` nodes, shaped by acceptance rates. Raises InputError for a number out of range."""

    def __init__(self, nodes: int) -> None:
        if not 1 <= nodes <= MOST_NODES:
            raise InputError(f"a draft tree of {nodes} nodes is out of range: 1 to {MOST_NODES}")
        self._nodes = nodes
        self._known: RankRates | None = None
        self._shape = TreeShape()

    def plan(self, signals: Signals) -> Plan:
        for _, rates in signals.rates:  # there is one drafter
            if rates is not self._known:
                self._known, self._shape = rates, best_tree(rates, nodes=self._nodes)
        shape = self._shape.cut(max(0, signals.remaining_tokens - 1))
        return Plan(len(shape), reason="fixed", shape=shape)

    def begin(self, adapter: str = "") -> int:
        return 0

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        """What it needs are rates."""
