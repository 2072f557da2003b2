"""What passes cost on this device, learnt from the passes that happen. Knows seconds, not models; has no clock.

A target pass over n tokens takes T(n) = step · c(n) with c(n) = 1 + β(n)·(n - 1): β is what one more row costs, in
plain steps. It is near constant on a CPU, so a width that was never tried is known from those that were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from edgedecode.types import RoundCost

__all__ = ["CONTEXT_BUCKETS", "CostModel", "CostTable", "DraftCost", "context_bucket"]

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
_REACH = 0.15
"""How far a measurement speaks for other widths, in the logarithm of the width."""
_OUTLIER = 3.0
"""A pass this many times dearer or cheaper than predicted counts as that: the machine did something else."""
_FIRST = 3
"""So many plain passes make the first estimate, by their median: the first ones are cold."""


@dataclass(slots=True)
class CostTable:
    """Times at one context bucket. `step` None: nothing was measured yet."""

    step: float | None = None
    """Seconds of a plain pass over one token, the unit of everything else here."""
    beta: dict[int, float] = field(default_factory=dict)
    """Width → what one more row costs, in plain steps."""
    seen: dict[int, int] = field(default_factory=dict)
    """Width → passes measured."""
    _first: list[float] = field(default_factory=list)
    _curve: list[float] = field(default_factory=list)

    def c(self, width: int) -> float:
        """Return T(width) / T(1), never falling in width."""
        if not self._curve:
            self._curve = _monotone([self._raw(n) for n in range(WIDEST + 1)])
        if width <= WIDEST:
            return self._curve[width]
        return self._curve[WIDEST] * width / WIDEST

    def observe(self, width: int, seconds: float) -> None:
        """Learn from one pass. Widths beyond the first need a plain step to be compared with."""
        if seconds <= 0 or not math.isfinite(seconds):
            return
        if self.step is None:
            self._begin(width, seconds)
            return
        predicted = self.step * self.c(width)
        seconds = min(max(seconds, predicted / _OUTLIER), predicted * _OUTLIER)
        count = self.seen[width] = self.seen.get(width, 0) + 1
        if width == 1:
            self.step += _SETTLED * (seconds - self.step)
            return
        before = self.beta.get(width, 0.0)
        self.beta[width] = before + max(_SETTLED, 1 / count) * ((seconds / self.step - 1) / (width - 1) - before)
        self._curve.clear()

    def _begin(self, width: int, seconds: float) -> None:
        if width == 1:
            self._first.append(seconds)
            if len(self._first) == _FIRST:
                self.step = median(self._first)
                self.seen[1] = _FIRST

    def _raw(self, width: int) -> float:
        return 1.0 if width < 2 else max(1.0, 1 + self._beta(width) * (width - 1))

    def _beta(self, width: int) -> float:
        """Return β by what was measured at and near this width: kernel regression over the prior's shape."""
        prior = _between(_SHAPE, width)
        total, weights = _PRIOR_WEIGHT * prior, _PRIOR_WEIGHT
        for other, beta in self.beta.items():
            distance = math.log(other / width) / _REACH
            weight = min(self.seen.get(other, 1), _ENOUGH) / (1 + distance * distance)
            total += weight * beta * prior / _between(_SHAPE, other)
            weights += weight
        return total / weights


@dataclass(slots=True)
class DraftCost:
    """What a drafter's own model takes, in seconds; None: not measured yet."""

    step: float | None = None
    read: float | None = None

    def observe(self, cost: RoundCost) -> None:
        """Learn from one round's drafting: `drafted` tokens, `read` of the context before them."""
        drafted = max(1, cost.levels or cost.drafted)  # it may have dropped a token that it did not trust
        if cost.read <= 2:  # its first step reads them along
            self.step = _settle(self.step, cost.draft_seconds / drafted)
            return
        steps = (drafted - 1) * (self.step or 0.0)
        self.read = _settle(self.read, max(0.0, cost.draft_seconds - steps) / cost.read)


class CostModel:
    """c(n), draft and host costs of one pack on one engine and device. A fold over rounds: same rounds, same costs."""

    def __init__(self) -> None:
        self.tables: dict[int, CostTable] = {}
        self.drafts: dict[str, DraftCost] = {}
        self.host: dict[str, float] = {}
        """Host seconds of a round by drafter; "none" is plain decoding's."""

    def table(self, context_tokens: int) -> CostTable:
        """Return the bucket's table; one that was never used starts from its nearest neighbour's shape."""
        bucket = context_bucket(context_tokens)
        if bucket not in self.tables:
            near = min(self.tables, key=lambda other: abs(other - bucket), default=None)
            known = CostTable() if near is None else self.tables[near]
            self.tables[bucket] = CostTable(known.step, dict(known.beta), dict.fromkeys(known.beta, 1))
        return self.tables[bucket]

    def observe(self, cost: RoundCost, *, context_tokens: int) -> None:
        """Learn from one round."""
        self.table(context_tokens).observe(cost.width, cost.pass_seconds)
        self.host[cost.drafter] = _settle(self.host.get(cost.drafter), cost.host_seconds)
        if cost.draft_seconds > 0:
            self.drafts.setdefault(cost.drafter, DraftCost()).observe(cost)

    def step_seconds(self, context_tokens: int) -> float | None:
        """Return the seconds of a plain token with its host work; None while unknown."""
        step = self.table(context_tokens).step
        return None if step is None else step * (1 + self.o("none", context_tokens))

    def o(self, drafter: str, context_tokens: int) -> float:
        """Return the host's work in a round of this drafter, in plain passes."""
        return self._share(self.host.get(drafter, self.host.get("none")), context_tokens, _HOST_SHARE)

    def d(self, drafter: str, context_tokens: int) -> float:
        """Return the cost of one drafted token, in plain passes; 0 for drafters without a model of their own."""
        known = self.drafts.get(drafter)
        return self._share(None if known is None else known.step, context_tokens, _DRAFT_SHARE)

    def reading(self, drafter: str, context_tokens: int) -> float:
        """Return the cost of reading one token with the drafter's model, in plain passes."""
        known = self.drafts.get(drafter)
        return self._share(None if known is None else known.read, context_tokens, _READ_SHARE)

    def _share(self, seconds: float | None, context_tokens: int, default: float) -> float:
        step = self.table(context_tokens).step
        return default if seconds is None or step is None else seconds / step

    def as_dict(self) -> dict[str, object]:
        """Return everything that was learnt, JSON-serialisable."""
        tables = {
            str(bucket): {
                "step": table.step,
                "beta": {str(width): beta for width, beta in sorted(table.beta.items())},
                "seen": {str(width): count for width, count in sorted(table.seen.items())},
            }
            for bucket, table in sorted(self.tables.items())
        }
        drafts = {name: {"step": cost.step, "read": cost.read} for name, cost in sorted(self.drafts.items())}
        return {"tables": tables, "drafts": drafts, "host": dict(sorted(self.host.items()))}

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> CostModel:
        """Read what `as_dict` gave. Raises ValueError for anything else: the caller starts afresh."""
        costs = cls()
        try:
            for bucket, table in _mapping(value["tables"]).items():
                costs.tables[_bucket(bucket)] = _read_table(_mapping(table))
            for name, draft in _mapping(value["drafts"]).items():
                fields = _mapping(draft)
                costs.drafts[name] = DraftCost(_optional(fields["step"]), _optional(fields["read"]))
            costs.host = {name: _positive(seconds) for name, seconds in _mapping(value["host"]).items()}
        except (KeyError, TypeError) as error:
            raise ValueError(f"no cost model: {error}") from None
        return costs


def context_bucket(context_tokens: int) -> int:
    """Return the number of the bucket these many tokens fall in."""
    return next((index for index, most in enumerate(CONTEXT_BUCKETS) if context_tokens <= most), len(CONTEXT_BUCKETS))


def _settle(known: float | None, seconds: float) -> float:
    if known is None:
        return seconds
    return known + _SETTLED * (min(max(seconds, known / _OUTLIER), known * _OUTLIER) - known)


def _between(shape: Mapping[int, float], width: int) -> float:
    """Return the shape at this width, linear between its points and level beyond them."""
    below = max((known for known in shape if known <= width), default=min(shape))
    above = min((known for known in shape if known >= width), default=max(shape))
    if above == below:
        return shape[below]
    return shape[below] + (shape[above] - shape[below]) * (width - below) / (above - below)


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
    beta = {_width(width): _finite(value) for width, value in _mapping(fields["beta"]).items()}
    seen = {_width(width): int(_positive(value)) for width, value in _mapping(fields["seen"]).items()}
    return CostTable(_optional(fields["step"]), beta, seen)


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no table")
    return value


def _optional(value: object) -> float | None:
    return None if value is None else _positive(value)


def _positive(value: object) -> float:
    if _finite(value) < 0:
        raise ValueError(f"{value!r} is negative")
    return float(value)  # type: ignore[arg-type]


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _bucket(text: str) -> int:
    if not (text.isdigit() and int(text) <= len(CONTEXT_BUCKETS)):
        raise ValueError(f"{text!r} is no context bucket")
    return int(text)


def _width(text: str) -> int:
    if not (text.isdigit() and 1 <= int(text) <= 4096):
        raise ValueError(f"{text!r} is no width")
    return int(text)
