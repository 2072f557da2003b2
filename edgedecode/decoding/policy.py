"""What a policy is shown and what it decides: signals, offers, scores and costs of rounds in, plans out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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
    repeats: int = 0
    """Plain rounds after this plain one whose times were not kept: at rest nobody is asked, and little is noted."""


@dataclass(frozen=True, slots=True)
class Signals:
    """All a policy may know before a round, JSON-serialisable: measured times come in here, a policy has no clock."""

    round: int
    """How many times the policy was asked in this generation: with 1 it begins."""
    context_tokens: int
    remaining_tokens: int
    """How many tokens may still be emitted."""
    offers: tuple[Offer, ...] = ()
    """What the free drafters would propose now."""
    unread: tuple[tuple[str, int], ...] = ()
    """Per drafter with a model of its own: how many tokens of the context that has still to read."""
    costs: tuple[RoundCost, ...] = ()
    """The rounds since the last call."""
    scores: tuple[Score, ...] = ()
    """Offers whose tokens were emitted since the last call."""
    rates: tuple[tuple[str, RankRates], ...] = ()
    """Of drafters that can propose trees: what their guesses are worth, where that moved since the last call."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Signals:
        """Read what `dataclasses.asdict` and JSON made of it. Raises KeyError or TypeError for anything else."""
        return cls(
            round=value["round"],
            context_tokens=value["context_tokens"],
            remaining_tokens=value["remaining_tokens"],
            offers=tuple(Offer(**offer) for offer in value["offers"]),
            unread=tuple((name, count) for name, count in value["unread"]),
            costs=tuple(RoundCost(**cost) for cost in value["costs"]),
            scores=tuple(Score(**score) for score in value["scores"]),
            rates=tuple((name, tuple(tuple(depth) for depth in rates)) for name, rates in value.get("rates", ())),
        )


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

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Plan:
        """Read what `dataclasses.asdict` and JSON made of it. Raises KeyError or TypeError for anything else."""
        shape = value.get("shape")
        if shape is not None:
            shape = TreeShape(tuple(shape["parents"]), tuple(shape["ranks"]))
        return cls(**{**value, "shape": shape})


WHOLE = Plan(0)
"""No wishes to a drafter: it reads everything and stops at its limit."""


class Policy(Protocol):
    """Chooses each round's drafter and draft length: deterministic given the signals so far, no clock, no I/O."""

    def plan(self, signals: Signals) -> Plan: ...


MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same draft length; 0 is plain decoding. Raises InputError outside 0 to MAX_DRAFT."""

    draft_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 0 (no speculation) to {MAX_DRAFT}")

    def plan(self, signals: Signals) -> Plan:
        return Plan(min(self.draft_max, signals.remaining_tokens - 1), reason="fixed")


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
