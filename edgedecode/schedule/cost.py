"""What passes cost on this device, learnt from the passes that happen.

A target pass over n tokens takes T(n) = step · c(n) with c(n) = 1 + β(n)·(n - 1): β is what one more row costs, in
plain steps. It changes little from width to width, so a width that was never tried is known from those that were.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.policy import ASKED, MAX_DRAFT, NO_DRAFTER, RoundCost
from edgedecode.decoding.tree import RoundPrice

__all__ = [
    "CONTEXT_BUCKETS",
    "REFIT",
    "WIDEST",
    "CostModel",
    "CostTable",
    "DraftCost",
    "Prices",
    "Recent",
    "context_bucket",
]

CONTEXT_BUCKETS = (512, 2048, 8192)
"""Contexts up to each of these lengths, in tokens, have one table; longer ones the last."""
WIDEST = MAX_DRAFT + 1
"""Rows of the widest pass with a figure of its own."""
PRIOR_BETA = {2: 0.35, 3: 0.38, 5: 0.40, 9: 0.42, 17: 0.45, 33: 0.45}
"""β by width before anything is measured: expensive, as two slow cores measured (0.2 to 0.5)."""
PRIOR_WEIGHT = 0.01
"""Passes that the prior counts for."""
ENOUGH = 8
"""Passes of a width that its cost is the average of, and after which it counts in full. More: a machine that changes is
followed later, with less noise."""
AGEING = 0.998
"""What older passes count for after one more, of whatever width. Less: costs that were measured in a bad moment are
doubted sooner."""
REACH = 0.15
"""How far a measurement speaks for other widths, in the logarithm of the width."""
REFIT = 16
"""Passes of several rows after which the curve is fitted again, fewer at first. Less: more host work."""
OUTLIER = 1.5
"""A pass this many times slower or faster than predicted counts as that: the machine did something else meanwhile."""
LATEST = 5
"""Plain passes are the median of this many: an interrupted one is many times as long."""
STEADY = 2 * LATEST - 1
"""Host work and draft steps, in plain steps, are the median of this many: when the machine becomes slower or faster,
plain passes show it before these are mistaken for another pair's."""
DRIFT = math.sqrt(OUTLIER)
"""Where drafting rounds took this many times more or less than predicted, and a plain pass did too, the machine's speed
has changed: its plain step is that pass. Less: spikes are taken for it; more: prices are old for longer."""
MEASURE = 64
"""Rounds without a plain one, after which one is plain: the unit of every cost must not grow old. A pair's fourth to
sixth plain passes are asked for after 8, 16 and 32 rounds: the first ones may have been beside other work."""


class _Guess(NamedTuple):
    """Costs in plain steps before they are measured."""

    step: float = 0.15
    read: float = 0.02
    host: float = 0.01


GUESS = _Guess()


class CostTable:
    """Times at one context bucket.

    step: seconds of a plain pass over one token, the unit of everything else here; None: nothing was measured yet.
    beta: float64 [WIDEST + 1], by width what one more row costs, in plain steps; 0 where never measured. seen: passes
    measured, by width, fading; widths beyond WIDEST count as that. plain: plain passes measured.
    """

    __slots__ = ("_curve", "_least", "_plain", "_stale", "_wide", "beta", "plain", "seen", "step")

    def __init__(
        self, step: float | None = None, beta: Mapping[int, float] | None = None, *, plain: int | None = None
    ) -> None:
        self.step = step
        self._plain = Recent(step)
        self.plain = plain if plain is not None else 0 if step is None else 1
        self.beta = np.zeros(WIDEST + 1)
        self.seen = np.zeros(WIDEST + 1)
        for width, value in (beta or {}).items():
            self.beta[width], self.seen[width] = value, 1
        self._curve: list[float] = []
        self._least: list[float] = []
        self._stale = self._wide = 0
        """Passes of several rows since the last fit, and in all."""

    def curve(self, *, least: bool = False) -> Sequence[float]:
        """Return c by width, 0 to WIDEST.

        least: its optimistic value instead, the lower the fewer passes near that width were measured.
        """
        if not self._curve:
            self._refit()
        return self._least if least else self._curve

    def c(self, width: int) -> float:
        """Return T(width) / T(1), never falling in width."""
        curve = self.curve()
        return curve[width] if width <= WIDEST else curve[WIDEST] * width / WIDEST

    def restart(self) -> None:
        """Forget what plain passes took before: the next one is the step."""
        self._plain = Recent()

    def observe(self, width: int, seconds: float) -> None:
        """Learn from one pass. Widths beyond the first need a plain step to be compared with."""
        if seconds <= 0 or not math.isfinite(seconds):
            return
        if width == 1:
            self._plain.observe(seconds)
            self.plain += 1
            self.seen *= AGEING
            if self.plain % MEASURE == 0:
                self._curve = []
            if self.step is not None or self.plain > LATEST // 2:
                self.step = self._plain.value
            return
        if self.step is None:
            return
        predicted = self.step * self.c(width)
        seconds = min(max(seconds, predicted / OUTLIER), predicted * OUTLIER)
        width = min(width, WIDEST)
        self.seen *= AGEING
        self.seen[width] += 1
        weight = max(1 / ENOUGH, 1 / self.seen[width])
        self.beta[width] += weight * ((seconds / self.step - 1) / (width - 1) - self.beta[width])
        self._stale += 1
        self._wide += 1
        if self._stale >= min(REFIT, self._wide / 4):
            self._curve = []

    def is_due(self, rounds: int, *, most: int = MEASURE) -> bool:
        """Tell whether a plain pass is to be measured, `rounds` after the last one: soon at first, then seldom."""
        return self.step is None or rounds >= min(most, 2.0 ** min(self.plain, 6))

    def _refit(self) -> None:
        """Fit β by kernel regression over what was measured at and near each width, and the prior."""
        kernel, prior = _kernel()
        weights = kernel * np.minimum(self.seen, ENOUGH)
        weights[:, :2] = 0.0
        known = weights.sum(axis=1)
        moved = (PRIOR_WEIGHT + weights @ (self.beta / prior)) / (PRIOR_WEIGHT + known)
        more = prior * moved * np.maximum(0, np.arange(WIDEST + 1) - 1)
        self._stale = 0
        curve = _monotone(np.maximum(1.0, 1.0 + more))
        self._curve, self._least = curve.tolist(), (1 + (curve - 1) * (1 - 0.5 / (1 + known))).tolist()


class Recent:
    """The median of the latest few measurements of something short."""

    __slots__ = ("_latest", "_most", "value")

    def __init__(self, value: float | None = None, *, most: int = LATEST) -> None:
        self.value = value
        """None: not measured yet."""
        self._latest: list[float] = [] if value is None else [value]
        self._most = most

    @property
    def few(self) -> bool:
        """Whether the first ones, perhaps cold or beside other work, may be most of them."""
        return len(self._latest) <= self._most // 2

    def observe(self, value: float) -> None:
        self._latest.append(value)
        del self._latest[: -self._most]
        self.value = sorted(self._latest)[(len(self._latest) - 1) // 2]


class DraftCost:
    """What a drafter's own model takes, in plain steps: a step, and reading a token of the context."""

    __slots__ = ("read", "step")

    def __init__(self, step: float | None = None, read: float | None = None) -> None:
        self.step, self.read = Recent(step, most=STEADY), Recent(read, most=STEADY)

    def observe(self, cost: RoundCost, *, plain_step: float) -> None:
        """Learn from one round's drafting: `drafted` tokens, `read` of the context before them."""
        spent = cost.draft_seconds / plain_step
        if cost.read <= 2:  # its first step reads them along
            self.step.observe(spent / cost.steps)
            return
        if cost.read <= ENOUGH:  # too few to tell reading from what steps vary by
            return
        if self.step.value is None:  # until a round without reading tells them apart
            self.step.observe(spent / (cost.steps + (cost.read - 1) * GUESS.read / GUESS.step))
        assert self.step.value is not None
        self.read.observe(max(0.0, spent - cost.steps * self.step.value) / (cost.read - 1))


class CostModel:
    """c(n), draft and host costs of one pack on one engine and device. A fold over rounds: same rounds, same costs."""

    def __init__(self) -> None:
        self.tables: dict[int, CostTable] = {}
        self.drafts: dict[str, DraftCost] = {}
        self.host: dict[str, Recent] = {}
        """The host's work in a round by `RoundCost.drafter`, in plain steps; NO_DRAFTER's is plain decoding's."""
        self.drift = Recent()
        """What drafting rounds took over what was predicted of them."""

    def table(self, context_tokens: int) -> CostTable:
        """Return the bucket's table; one that was never used starts from its nearest neighbour's shape."""
        bucket = context_bucket(context_tokens)
        if bucket not in self.tables:
            near = min(self.tables, key=lambda other: abs(other - bucket), default=None)
            known = CostTable() if near is None else self.tables[near]
            measured = np.flatnonzero(known.seen[2:]) + 2
            self.tables[bucket] = CostTable(known.step, {int(width): known.beta[width] for width in measured})
        return self.tables[bucket]

    def observe(self, cost: RoundCost, *, context_tokens: int) -> None:
        """Learn from one round.

        Everything is kept in plain steps of its moment: a machine that becomes slower does so for all of it.
        """
        table, drift = self.table(context_tokens), _beyond(self.drift.value)
        if drift and cost.width == 1 and table.step is not None and _beyond(cost.pass_seconds / table.step) == drift:
            table.restart()
            self.drift = Recent()
        table.observe(cost.width, cost.pass_seconds)
        if table.step is None:
            return
        self.host.setdefault(cost.drafter, Recent(most=STEADY)).observe(cost.host_seconds / table.step)
        if cost.draft_seconds > 0:
            self.drafts.setdefault(cost.drafter, DraftCost()).observe(cost, plain_step=table.step)

    def drifted(self, ratio: float, drafter: str) -> float:
        """Note what a round of this drafter took over what was predicted; return what such rounds take of late."""
        timed = self.host.get(drafter)
        if timed is None or timed.few:  # the prediction was a guess, which says nothing of the machine
            return min(ratio, OUTLIER)
        if self.drift.few:  # their median would be a round that was interrupted
            ratio = min(ratio, OUTLIER)
        self.drift.observe(ratio)
        assert self.drift.value is not None
        return self.drift.value

    def is_due(self, rounds: int, *, context_tokens: int) -> bool:
        """Tell whether a plain pass is to be measured: sooner where rounds are not what was predicted."""
        most = ENOUGH if _beyond(self.drift.value) else MEASURE
        return self.table(context_tokens).is_due(rounds, most=most)

    def step_seconds(self, context_tokens: int) -> float | None:
        """Return the seconds of a plain token with its host work; None while unknown."""
        table = self.table(context_tokens)
        return None if table.step is None else table.step * Prices(self, table, table.step).plain


class Prices:
    """Costs at one context, in plain steps of `seconds`; `plain` is a plain round's, with its host work."""

    __slots__ = ("_costs", "_curve", "_table", "plain", "seconds")

    def __init__(self, costs: CostModel, table: CostTable, seconds: float) -> None:
        self._costs, self._table, self.seconds = costs, table, seconds
        self._curve = table.curve()
        self.plain = 1 + self.host(NO_DRAFTER)

    def host(self, drafter: str, *, least: bool = False) -> float:
        """Return the host's work in a round of this drafter. least: what it may turn out to be, as in `step`."""
        hosts = self._costs.host
        known = hosts.get(drafter) or hosts.get(NO_DRAFTER)
        if known is None or known.value is None:
            return GUESS.host
        return min(known.value, self.host(ASKED)) if least and known.few and drafter != ASKED else known.value

    def step(self, drafter: str, *, least: bool = False) -> float:
        """Return the cost of one token drafted with a model.

        least: what it may turn out to be, where it was timed a few times only, perhaps cold or beside other work.
        """
        known = self._costs.drafts.get(drafter)
        if known is None or known.step.value is None:
            return GUESS.step
        return min(known.step.value, 2 * GUESS.step) if least and known.step.few else known.step.value

    def read(self, drafter: str, *, least: bool = False) -> float:
        """Return the cost of reading one token with the drafter's model. least: as in `step`."""
        known = self._costs.drafts.get(drafter)
        if known is None or known.read.value is None:
            return GUESS.read
        return min(known.read.value, GUESS.read) if least and known.read.few else known.read.value

    def row(self, length: int) -> float:
        """Return what one more drafted token costs once it is drafted: its row in the target's pass."""
        return (self._table.c(length + 2) - self._curve[2]) / length

    def round(self, length: int, *, step: float = 0.0, host: float = 0.0) -> float:
        """Return the cost of a round that drafts `length` tokens, in plain rounds."""
        return (self._table.c(length + 1) + length * step + host) / self.plain

    def best_length(
        self,
        alive: Iterable[float],
        longest: int,
        *,
        step: float = 0.0,
        host: float = 0.0,
        least: bool = False,
        stops: float = 0.0,
    ) -> tuple[int, float]:
        """Return the length, up to `longest`, of the best speed-up for a draft with these chances of survival, and
        that; at least 1.

        stops: the share of the drafts that fail which end there, their model not being sure: others go on to the end.
        least: with what passes may turn out to cost, instead of what is expected.
        """
        curve = self._table.curve(least=True) if least else self._curve
        best_length, best, tokens, cost, drafted = 1, 0.0, 1.0, curve[1] + host, 1.0
        for length, chance in enumerate(alive, start=1):
            tokens += chance
            cost += (curve[length + 1] - curve[length] + step) * drafted
            speed = tokens / cost
            drafted = 1 - stops * (1 - chance)
            if speed > best:
                best_length, best = length, speed
            elif tokens + chance * (longest - length) < best * cost:  # were all others as likely, and for nothing
                break
        return best_length, best * self.plain

    def tree(self, drafter: str, level: float) -> RoundPrice:
        """Return what a round with a tree costs, in plain rounds. level: what a level costs that a model reads."""
        table, host, plain = self._table, self.host(drafter), self.plain
        return lambda nodes, levels: (table.c(nodes + 1) + levels * level + host) / plain


def _beyond(drift: float | None) -> int:
    """Return 1 for much slower than expected, -1 for much faster, else 0."""
    return 0 if drift is None else (drift > DRIFT) - (drift < 1 / DRIFT)


def context_bucket(context_tokens: int) -> int:
    """Return the number of the bucket these many tokens fall in."""
    return bisect_left(CONTEXT_BUCKETS, context_tokens)


@cache
def _kernel() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what a measurement at each width says about each other, [width, measured], and the prior's β by width."""
    widths = np.maximum(1, np.arange(WIDEST + 1))
    distance = np.log(widths[:, None] / widths[None, :]) / REACH
    return 1 / (1 + distance**2), np.interp(widths, list(PRIOR_BETA), list(PRIOR_BETA.values()))


def _monotone(curve: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a curve that never falls, midway between the lowest such one above and the highest below."""
    above, below = np.maximum.accumulate(curve), np.minimum.accumulate(curve[::-1])[::-1]
    return (above + below) / 2
