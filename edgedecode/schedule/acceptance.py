"""How long drafts live: per drafter and kind of match, the chance that the next drafted token is accepted.

Counts fade, so that a text that changes is noticed, and start from a prior, so that one round is not believed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgedecode.decoding.policy import Score

from .checked_numbers import amount

__all__ = ["MATCH_BUCKETS", "Survival", "match_bucket"]

MATCH_BUCKETS = (0, 1, 2, 4, 8, 16)
"""Matches up to each of these lengths are alike; longer ones make the last kind."""
_PRIORS = (0.45, 0.25, 0.35, 0.5, 0.7, 0.85, 0.92)
"""The chance per token before anything was seen, by match bucket; the first is that of drafters without matches."""
_PRIOR_WEIGHT = 2.0
_FADE = 0.9
"""What older rounds count for after one more of the same kind: the last 10 make the estimate."""
_STREAK = 3
"""Drafts in a row that failed at once, after which older successes fade three times as fast: the text changed."""
_CARRIED = 6.0
"""Rounds' worth of what older generations showed that counts in a new one."""
_DEPTHS = 8
"""Positions beyond share one count."""
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Table:
    prior: float
    accepted: list[float] = field(default_factory=lambda: [0.0] * _DEPTHS)
    tried: list[float] = field(default_factory=lambda: [0.0] * _DEPTHS)
    failed: int = 0

    def add(self, score: Score) -> None:
        self.failed = 0 if score.accepted else self.failed + 1
        fade = _FADE if self.failed < _STREAK else _FADE**3
        for depth in range(_DEPTHS):
            self.accepted[depth] *= fade
            self.tried[depth] *= _FADE
        for index in range(min(score.accepted + 1, score.length)):  # a wholly accepted draft is censored: no failure
            depth = min(index, _DEPTHS - 1)
            self.tried[depth] += 1
            self.accepted[depth] += index < score.accepted

    def carry(self) -> None:
        self.failed = 0
        share = _CARRIED / max(_CARRIED, self.tried[0])
        self.accepted = [count * share for count in self.accepted]
        self.tried = [count * share for count in self.tried]

    def chances(self, length: int) -> list[float]:
        """Return each position's chance of acceptance given the one before: its own counts, leaning on its neighbours.

        The prior of a position is what the positions before it showed: drafts that begin well go on well.
        """
        result: list[float] = []
        prior = self.prior
        for depth in range(min(length, _DEPTHS)):
            prior = (self.accepted[depth] + _PRIOR_WEIGHT * prior) / (self.tried[depth] + _PRIOR_WEIGHT)
            result.append(prior)
        return result + [prior] * (length - len(result))


class Survival:
    """Tables by (drafter, match bucket). A fold over scores: same scores, same tables."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, int], _Table] = {}

    def begin(self) -> None:
        """A generation starts: its text may be of another kind."""
        for table in self._tables.values():
            table.carry()

    def add(self, score: Score) -> None:
        """Learn what became of an offer or a draft."""
        if score.length > 0:
            self._table(score.drafter, score.match).add(score)

    def curve(self, drafter: str, length: int, match: int = 0) -> list[float]:
        """Return, for each of `length` positions, the chance that the draft is accepted up to and with it."""
        alive = 1.0
        result: list[float] = []
        for chance in self._table(drafter, match).chances(length):
            alive *= chance
            result.append(alive)
        return result

    def as_dict(self) -> dict[str, object]:
        """Return the tables, JSON-serialisable."""
        return {
            f"{name}:{bucket}": {"accepted": list(table.accepted), "tried": list(table.tried)}
            for (name, bucket), table in sorted(self._tables.items())
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Mapping[str, Sequence[float]]]) -> Survival:
        """Read what `as_dict` gave. Raises KeyError, IndexError, TypeError or ValueError for anything else."""
        survival = cls()
        for key, counts in value.items():
            name, _, bucket = key.rpartition(":")
            accepted, tried = ([amount(count) for count in counts[kind]] for kind in ("accepted", "tried"))
            if len(accepted) != _DEPTHS or len(tried) != _DEPTHS:
                raise ValueError(f"{key} has not {_DEPTHS} depths")
            if any(more > count + _ROUNDING for more, count in zip(accepted, tried, strict=True)):
                raise ValueError(f"{key} has more accepted than tried")
            if not (bucket.isdecimal() and int(bucket) < len(_PRIORS)):
                raise ValueError(f"{key} names no kind of match")
            survival._tables[name, int(bucket)] = _Table(_PRIORS[int(bucket)], accepted, tried)
        return survival

    def _table(self, drafter: str, match: int) -> _Table:
        key = drafter, match_bucket(match)
        if key not in self._tables:
            self._tables[key] = _Table(_PRIORS[key[1]])
        return self._tables[key]


def match_bucket(match: int) -> int:
    """Return the number of the bucket a match of this length falls in."""
    for index, most in enumerate(MATCH_BUCKETS):
        if match <= most:
            return index
    return len(MATCH_BUCKETS)
