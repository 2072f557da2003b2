"""Counts of drafted and accepted tokens over runs, and the speed-up they predict (goodput, TurboSpec, 2406.14066).

A round with a draft of L tokens costs c(L + 1) + L·d + o target passes and yields its accepted tokens and one more. A
tree of L levels has a width of its number of nodes, and costs one draft step per level.
    S(k) = (1 + Σ_{j≤k} Π_{i≤j} a_i) / (c(k + 1) + k·d + o), times 1 + o₀, the host overhead of plain decoding.
Drafts shorter than k (at the end of an answer, or after a short lookup match) count with their own length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedecode import Stats

from .cost_meter import Costs


@dataclass(frozen=True, slots=True)
class Host:
    """Host overhead per token of plain decoding and per verified round: o₀ and o, in seconds instead of passes."""

    plain_seconds: float
    round_seconds: float


@dataclass(slots=True)
class Survival:
    """Counts over the rounds after prefill, which never has a draft."""

    rounds: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    survived: list[int] = field(default_factory=list)
    """survived[j]: rounds in which at least j + 1 drafted tokens were accepted."""
    reached: list[int] = field(default_factory=list)
    """reached[j]: rounds whose draft was at least j + 1 tokens long."""

    def add(self, stats: Stats) -> None:
        self.rounds += stats.rounds - 1
        self.tokens += stats.verified_tokens - 1
        self.proposed += stats.proposed
        self.accepted += stats.accepted
        _add(self.survived, stats.survival)
        _add(self.reached, stats.reached)

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass, the bonus token included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def branching(self) -> float:
        """Tokens drafted per level of a draft: 1 unless drafts are trees."""
        levels = sum(self.reached)
        return self.proposed / levels if levels else 1.0

    @property
    def per_position(self) -> list[float]:
        """For position j, the share of drafts at least j + 1 long whose first j + 1 tokens were accepted."""
        return [survived / reached for survived, reached in zip(self.survived, self.reached, strict=True) if reached]

    def drafts_of(self, length: int, *, longest: int) -> int:
        """Return the number of rounds with a draft of this length if drafts were cut at `longest`."""
        at_least = self.rounds if length == 0 else self._reached(length - 1)
        return at_least - (self._reached(length) if length < longest else 0)

    def _reached(self, index: int) -> int:
        return self.reached[index] if index < len(self.reached) else 0


def predicted(survival: Survival, costs: Costs, *, drafter: str, host: Host, drafting: float = 0.0) -> float:
    """Return the speed-up predicted for these rounds by the measured costs.

    drafting: cost of drafts in plain decoding steps beyond this drafter's d, when other drafters took part.
    """
    longest = len(survival.reached)
    tokens = survival.tokens
    speed_up = _speed_up(tokens, survival, costs=costs, drafter=drafter, host=host, longest=longest)
    plain = tokens * (1 + host.plain_seconds / costs.step_seconds)
    return plain / (plain / speed_up + drafting) if drafting else speed_up


def predicted_at(survival: Survival, costs: Costs, *, drafter: str, host: Host, length: int) -> float:
    """Return S(k) for a draft length k up to the recorded length, from the recorded survival; 1 for k = 0."""
    if length == 0:
        return 1.0
    tokens = survival.rounds + sum(survival.survived[:length])
    return _speed_up(tokens, survival, costs=costs, drafter=drafter, host=host, longest=length)


def _speed_up(tokens: int, survival: Survival, *, costs: Costs, drafter: str, host: Host, longest: int) -> float:
    step = costs.step_seconds
    cost = survival.rounds * host.round_seconds / step
    for length in range(longest + 1):
        rounds = survival.drafts_of(length, longest=longest)
        width = 1 + length * survival.branching
        cost += rounds * (costs.c(width, drafter) + length * costs.d(drafter, max(1, length)))
    return tokens * (1 + host.plain_seconds / step) / cost if cost else 1.0


def _add(counts: list[int], more: list[int]) -> None:
    counts += [0] * (len(more) - len(counts))
    for index, count in enumerate(more):
        counts[index] += count
