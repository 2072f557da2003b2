"""What passes cost on this device, learnt from the passes that happen.

A target pass over n tokens takes T(n) = step · c(n) with c(n) = 1 + β(n)·(n - 1): β is what one more row costs, in
plain steps. It is near constant on a CPU, so a width that was never tried is known from those that were.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.policy import ASKED, NO_DRAFTER, RoundCost

from .checked_numbers import amount, finite, mapping, optional_amount, positive

__all__ = ["CONTEXT_BUCKETS", "CostModel", "CostTable", "DraftCost", "Recent", "context_bucket"]

CONTEXT_BUCKETS = (512, 2048, 8192)
"""Contexts up to each of these lengths have one table; longer ones the last."""
WIDEST = 65
_SHAPE = {2: 0.35, 3: 0.38, 5: 0.40, 9: 0.42, 17: 0.45, 33: 0.45}
"""β before anything is measured: dear, so that a first draft must promise much; two slow cores measured 0.2 to 0.5."""
_DRAFT_SHARE = 0.15
"""A draft step over a plain step before one was measured."""
_READ_SHARE = 0.05
"""Reading one token with the draft model over a plain step, likewise."""
_HOST_SHARE = 0.01
_SETTLED = 0.15
"""Weight of a new measurement once there are many (exponential average)."""
_PRIOR_WEIGHT = 0.01
_ENOUGH = 8
"""Passes after which a width's own measurement counts in full."""
_REDRAW = 8
"""Wide passes after which the curve is drawn anew; the first few of a width count at once."""
_REACH = 0.15
"""How far a measurement speaks for other widths, in the logarithm of the width."""
_OUTLIER = 1.5
"""A pass this many times dearer or cheaper than predicted counts as that: the machine did something else meanwhile."""
_LATEST = 5
"""Plain passes, host work and draft steps are the median of this many: an interrupted one is many times as long."""
_DRIFT, _EARLY = 1.1, 6
"""Where one of the first plain passes turns out this many times cheaper or dearer, costs that were told in them are
converted: other widths' times are what was measured, and a first plain pass beside other work must not make them look
cheap. Later the machine has become another one, which all widths feel alike."""
_MEASURE = 64
"""Rounds without a plain one, after which one is plain: the unit of every cost must not grow old. A pair's first plain
passes may have been beside other work, so the fourth to sixth are asked for after 8, 16 and 32 rounds."""
_FIRST = 3
"""The first estimate is the median of this many plain passes: the first ones are cold."""


class CostTable:
    """Times at one context bucket.

    step: seconds of a plain pass over one token, the unit of everything else here; None: nothing was measured yet.
    beta: float64 [WIDEST + 1], by width what one more row costs, in plain steps; 0 where never measured. seen: passes
    measured, by width; widths beyond WIDEST count as that.
    """

    __slots__ = ("_curve", "_plain", "_stale", "_unit", "beta", "seen", "step")

    def __init__(self, step: float | None = None, beta: Mapping[int, float] | None = None) -> None:
        self.step = self._unit = step
        self._plain = Recent(step)
        self.beta = np.zeros(WIDEST + 1)
        self.seen = np.zeros(WIDEST + 1)
        for width, value in (beta or {}).items():
            self.beta[width], self.seen[width] = value, 1
        self._curve: list[float] = []
        self._stale = 0

    def c(self, width: int) -> float:
        """Return T(width) / T(1), never falling in width."""
        if not self._curve:
            self._curve, self._stale = self._drawn(), 0
        if width <= WIDEST:
            return self._curve[width]
        return self._curve[WIDEST] * width / WIDEST

    def observe(self, width: int, seconds: float) -> None:
        """Learn from one pass. Widths beyond the first need a plain step to be compared with."""
        if seconds <= 0 or not math.isfinite(seconds):
            return
        if width == 1:
            self._observe_plain(seconds)
            return
        if self.step is None:
            return
        predicted = self.step * self.c(width)
        seconds = min(max(seconds, predicted / _OUTLIER), predicted * _OUTLIER)
        width = min(width, WIDEST)
        count = self.seen[width] = self.seen[width] + 1
        self.beta[width] += max(_SETTLED, 1 / count) * ((seconds / self.step - 1) / (width - 1) - self.beta[width])
        self._stale += 1
        if self._stale >= _REDRAW or count <= _REDRAW:
            self._curve = []

    def is_due(self, rounds: int) -> bool:
        """Tell whether a plain pass is to be measured, `rounds` after the last one: soon at first, then seldom."""
        return self.step is None or rounds >= min(_MEASURE, 2.0 ** min(self.seen[1], 6))

    def forget_curve(self) -> None:
        """Draw the curve anew when it is asked for: `beta` was changed from outside."""
        self._curve = []

    def _observe_plain(self, seconds: float) -> None:
        self._plain.observe(seconds)
        self.seen[1] += 1
        if self.step is None and self.seen[1] < _FIRST:
            return
        self.step = self._plain.seconds
        assert self.step is not None
        if self._unit is None:
            self._unit = self.step
        elif self.seen[1] <= _EARLY and not self._unit / _DRIFT < self.step < self._unit * _DRIFT:
            others = np.maximum(1, np.arange(WIDEST + 1) - 1)
            told = ((1 + self.beta * others) * self._unit / self.step - 1) / others
            self.beta = np.where(self.seen > 0, told, self.beta)
            self._unit = self.step
            self._curve = []

    def _drawn(self) -> list[float]:
        """Return the curve: β by kernel regression over what was measured at and near each width, and the prior."""
        kernel, prior = _kernel()
        weights = kernel * np.minimum(self.seen, _ENOUGH)
        weights[:, :2] = 0.0
        moved = (_PRIOR_WEIGHT + weights @ (self.beta / prior)) / (_PRIOR_WEIGHT + weights.sum(axis=1))
        curve = np.maximum(1.0, 1.0 + prior * moved * np.maximum(0, np.arange(WIDEST + 1) - 1))
        return _monotone(curve.tolist())


class Recent:
    """The median of the latest few times of something short."""

    __slots__ = ("_latest", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        """None: not measured yet."""
        self._latest: list[float] = [] if seconds is None else [seconds]

    def observe(self, seconds: float) -> None:
        self._latest.append(seconds)
        del self._latest[:-_LATEST]
        self.seconds = sorted(self._latest)[(len(self._latest) - 1) // 2]


class DraftCost:
    """What a drafter's own model takes: a step, and reading a token of the context."""

    __slots__ = ("read", "step")

    def __init__(self, step: float | None = None, read: float | None = None) -> None:
        self.step, self.read = Recent(step), Recent(read)

    def observe(self, cost: RoundCost) -> None:
        """Learn from one round's drafting: `drafted` tokens, `read` of the context before them."""
        drafted = max(1, cost.levels or cost.drafted)  # it may have dropped a token that it did not trust
        if cost.read <= 2:  # its first step reads them along
            self.step.observe(cost.draft_seconds / drafted)
            return
        steps = (drafted - 1) * (self.step.seconds or 0.0)
        self.read.observe(max(0.0, cost.draft_seconds - steps) / cost.read)


class CostModel:
    """c(n), draft and host costs of one pack on one engine and device. A fold over rounds: same rounds, same costs."""

    def __init__(self) -> None:
        self.tables: dict[int, CostTable] = {}
        self.drafts: dict[str, DraftCost] = {}
        self.host: dict[str, Recent] = {}
        """Host seconds of a round by `RoundCost.drafter`; NO_DRAFTER's are plain decoding's."""

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
        """Learn from one round."""
        self.table(context_tokens).observe(cost.width, cost.pass_seconds)
        self.host.setdefault(cost.drafter, Recent()).observe(cost.host_seconds)
        if cost.draft_seconds > 0:
            self.drafts.setdefault(cost.drafter, DraftCost()).observe(cost)

    def step_seconds(self, context_tokens: int) -> float | None:
        """Return the seconds of a plain token with its host work; None while unknown."""
        step = self.table(context_tokens).step
        return None if step is None else step * (1 + self.o(NO_DRAFTER, context_tokens))

    def o(self, drafter: str, context_tokens: int) -> float:
        """Return the host's work in a round of this drafter, in plain passes."""
        known = self.host.get(drafter) or self.host.get(NO_DRAFTER)
        return self._share(None if known is None else known.seconds, context_tokens, _HOST_SHARE)

    def asking(self, context_tokens: int) -> float:
        """Return what asking drafters costs the host where nothing is drafted then, in plain passes."""
        return max(0.0, self.o(ASKED, context_tokens) - self.o(NO_DRAFTER, context_tokens))

    def d(self, drafter: str, context_tokens: int) -> float:
        """Return the cost of one drafted token, in plain passes; 0 for drafters without a model of their own."""
        known = self.drafts.get(drafter)
        return self._share(None if known is None else known.step.seconds, context_tokens, _DRAFT_SHARE)

    def reading(self, drafter: str, context_tokens: int) -> float:
        """Return the cost of reading one token with the drafter's model, in plain passes."""
        known = self.drafts.get(drafter)
        return self._share(None if known is None else known.read.seconds, context_tokens, _READ_SHARE)

    def _share(self, seconds: float | None, context_tokens: int, default: float) -> float:
        step = self.table(context_tokens).step
        return default if seconds is None or step is None else seconds / step

    def as_dict(self) -> dict[str, object]:
        """Return everything that was learnt, JSON-serialisable."""
        tables = {
            str(bucket): {
                "step": table.step,
                "beta": {str(width): float(table.beta[width]) for width in np.flatnonzero(table.seen[2:]) + 2},
                "seen": {str(width): int(table.seen[width]) for width in np.flatnonzero(table.seen)},
            }
            for bucket, table in sorted(self.tables.items())
        }
        drafts = {
            name: {"step": cost.step.seconds, "read": cost.read.seconds} for name, cost in sorted(self.drafts.items())
        }
        return {
            "tables": tables,
            "drafts": drafts,
            "host": {name: known.seconds for name, known in sorted(self.host.items())},
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> CostModel:
        """Read what `as_dict` gave. Raises ValueError for anything else: the caller starts afresh."""
        costs = cls()
        try:
            for bucket, table in mapping(value["tables"]).items():
                costs.tables[_bucket(bucket)] = _read_table(mapping(table))
            for name, draft in mapping(value["drafts"]).items():
                fields = mapping(draft)
                costs.drafts[name] = DraftCost(optional_amount(fields["step"]), optional_amount(fields["read"]))
            costs.host = {name: Recent(amount(seconds)) for name, seconds in mapping(value["host"]).items()}
        except (KeyError, TypeError) as error:
            raise ValueError(f"no cost model: {error}") from None
        return costs


def context_bucket(context_tokens: int) -> int:
    """Return the number of the bucket these many tokens fall in."""
    return bisect_left(CONTEXT_BUCKETS, context_tokens)


@cache
def _kernel() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what a measurement at each width says about each other, [width, measured], and the prior's β by width."""
    widths = np.maximum(1, np.arange(WIDEST + 1))
    distance = np.log(widths[:, None] / widths[None, :]) / _REACH
    return 1 / (1 + distance**2), np.interp(widths, list(_SHAPE), list(_SHAPE.values()))


def _monotone(curve: list[float]) -> list[float]:
    """Return the nearest curve that never falls (pool adjacent violators, Ayer 1955): dips are noise."""
    pools: list[tuple[float, int]] = []
    for value in curve:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def _read_table(fields: Mapping[str, object]) -> CostTable:
    table = CostTable(
        None if fields["step"] is None else positive(fields["step"]),
        {_width(width): finite(value) for width, value in mapping(fields["beta"]).items()},
    )
    for width, count in mapping(fields["seen"]).items():
        table.seen[_width(width)] = int(amount(count))
    return table


def _bucket(text: str) -> int:
    if not (text.isdigit() and int(text) <= len(CONTEXT_BUCKETS)):
        raise ValueError(f"{text!r} is not a context bucket")
    return int(text)


def _width(text: str) -> int:
    if not (text.isdigit() and 1 <= int(text) <= WIDEST):
        raise ValueError(f"{text!r} is not a width")
    return int(text)
