"""What was learnt about a pack's models on this device: costs, acceptance rates, and the budgets of exploration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from edgedecode.typed_json import described

from .acceptance import DEPTHS, PRIORS, Counts, History
from .cost_model import CONTEXT_BUCKETS, CostModel
from .cost_table import PRIOR_WEIGHT, WIDEST, CostTable
from .draft_cost import DraftCost
from .ledger import GRANT, Ledger
from .medians import STEADY, Recent

_Finite = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Range of counts and times in which quotients and products of a few of them stay finite."""
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Positive = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
_Width = Annotated[int, msgspec.Meta(ge=2, le=WIDEST)]
_Depths = Annotated[list[_Amount], msgspec.Meta(min_length=DEPTHS, max_length=DEPTHS)]
_ROUNDING = 1e-6


class _Table(msgspec.Struct):
    step: _Positive | None
    plain: Annotated[int, msgspec.Meta(ge=0, le=10**15)]
    beta: dict[_Width, _Finite]
    seen: dict[_Width, _Amount]


class _Draft(msgspec.Struct):
    step: _Amount | None
    read: _Amount | None


class _Counts(msgspec.Struct):
    accepted: _Depths
    tried: _Depths


_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Kind(msgspec.Struct):
    tables: dict[str, _Counts]
    stops: dict[str, _Share]
    balances: dict[str, _Finite] = {}


class _Kept(msgspec.Struct):
    tables: dict[Annotated[int, msgspec.Meta(ge=0, le=len(CONTEXT_BUCKETS))], _Table]
    drafts: dict[str, _Draft]
    host: dict[str, _Amount]
    history: dict[str, _Counts]
    stops: dict[str, _Share]
    balances: dict[str, _Finite]
    kinds: dict[str, _Kind] = {}
    widths: list[Annotated[int, msgspec.Meta(ge=1, le=10**6)]] = []


class Experience:
    """Shared by the sessions of a pair, whose rounds may be interleaved. Schedulers update it in place."""

    def __init__(
        self, costs: CostModel | None = None, history: History | None = None, ledger: Ledger | None = None
    ) -> None:
        self.costs = costs or CostModel()
        self.history = history or History()
        self.ledger = ledger or Ledger()

    def doubt(self) -> None:
        """Let all that an earlier process learnt, perhaps beside other work, count as one measurement at most."""
        self.costs.doubt(loaded=True)
        self.history.doubt()
        self.ledger.doubt(most=GRANT)

    def as_dict(self) -> dict[str, object]:
        """Return the part that is saved, JSON-serialisable."""
        tables, drafts, plain = self.costs.tables, self.costs.drafts, _kept_kind(self.history, self.ledger)
        kept = _Kept(
            tables={bucket: _kept_table(table) for bucket, table in sorted(tables.items())},
            drafts={name: _Draft(cost.step.value, cost.read.value) for name, cost in sorted(drafts.items())},
            host={name: each.value for name, each in sorted(self.costs.host.items()) if each.value is not None},
            history=plain.tables,
            stops=plain.stops,
            balances=plain.balances,
            kinds={
                kind: _kept_kind(history, self.ledger.under(kind))
                for kind, history in sorted(self.history.kinds.items())
            },
            widths=list(self.costs.widths),
        )
        found: dict[str, object] = msgspec.to_builtins(kept, str_keys=True)
        return found

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Experience:
        """Return the experience that `as_dict` was called on. Raises ValueError for an invalid value."""
        kept = msgspec.convert(value, described(_Kept), str_keys=True)
        costs = CostModel()
        costs.tables = {bucket: _table(table) for bucket, table in kept.tables.items()}
        costs.drafts = {name: DraftCost(draft.step, draft.read) for name, draft in kept.drafts.items()}
        costs.host = {name: Recent(value, most=STEADY) for name, value in kept.host.items()}
        costs.pad_to(sorted(kept.widths))
        history = _history(_Kind(kept.history, kept.stops))
        history.kinds = {kind: _history(each) for kind, each in kept.kinds.items()}
        ledger = Ledger(kept.balances, {kind: Ledger(each.balances) for kind, each in kept.kinds.items()})
        return cls(costs, history, ledger)


def _kept_table(table: CostTable) -> _Table:
    beta = table.known_beta
    seen = {width: float(table.seen[width]) or PRIOR_WEIGHT for width in beta}
    return _Table(table.step, table.plain, beta, seen)


def _table(kept: _Table) -> CostTable:
    table = CostTable(kept.step, kept.beta, plain=kept.plain)
    for width, passes in kept.seen.items():
        table.seen[width] = passes
    return table


def _kept_kind(history: History, ledger: Ledger) -> _Kind:
    for counts in history.tables.values():
        counts.settle()
    tables = {
        f"{drafter}:{bucket}": _Counts(counts.accepted, counts.tried)
        for (drafter, bucket), counts in sorted(history.tables.items())
    }
    return _Kind(tables, dict(sorted(history.stops.items())), dict(sorted(ledger.balances.items())))


def _history(kept: _Kind) -> History:
    return History(dict(_counts(key, counts) for key, counts in kept.tables.items()), kept.stops)


def _counts(key: str, kept: _Counts) -> tuple[tuple[str, int], Counts]:
    drafter, _, bucket = key.rpartition(":")
    if not (bucket.isdecimal() and int(bucket) < len(PRIORS)):
        raise ValueError(f"{key[:40]!r} is not the name of a drafter and the index of a match bucket")
    if any(more > count + _ROUNDING for more, count in zip(kept.accepted, kept.tried, strict=True)):
        raise ValueError(f"{key[:40]!r} has more accepted tokens than tried ones")
    return (drafter, int(bucket)), Counts(kept.accepted, kept.tried)
