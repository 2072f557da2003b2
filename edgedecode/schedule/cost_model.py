"""The costs of a pack's rounds on one engine and device: passes by context length, draft models and host overhead."""

from bisect import bisect_left
from collections.abc import Sequence

from edgedecode.decoding.policy import RoundCost

from .cost_table import ENOUGH, MEASURE, OUTLIER, CostTable, drift_of
from .draft_cost import DraftCost
from .medians import STEADY, Recent

CONTEXT_BUCKETS = (512, 2048, 8192)
"""Upper bounds, in tokens, of the context lengths that share a table; one more table is for longer contexts."""
PROMPT = 64
"""A block drafter that reads more tokens than this reads a prompt, and what its other rounds do not explain is the cost
of reading. With fewer, it is a round like others."""


class CostModel:
    """c(n), draft costs and host overhead of a pack on one engine and device. Deterministic given the rounds."""

    def __init__(self) -> None:
        CostTable().curve()  # the first fit of a process takes a millisecond, for which no answer should wait
        self.tables: dict[int, CostTable] = {}
        self.drafts: dict[str, DraftCost] = {}
        self.host: dict[str, Recent] = {}
        """Host overhead per round in baseline steps, by `RoundCost.drafter`; NO_DRAFTER is plain decoding."""
        self.drift = Recent()
        """Measured over predicted time of drafting rounds."""
        self.widths: tuple[int, ...] = ()
        """As in `ModelCard.widths`."""
        self.away = 0.0

    def pad_to(self, widths: Sequence[int], *, away: float = 0.0) -> None:
        """Take passes as padded to these widths from now on; empty: as wide as their rows. away: as in `ModelCard`."""
        self.widths, self.away = tuple(widths), away
        for table in self.tables.values():
            table.widths, table.away, table._curve = self.widths, away, []

    def doubt(self, *, loaded: bool = False) -> None:
        """Take everything measured so far as a guess that counts as one measurement at most. loaded: as for tables."""
        for table in self.tables.values():
            table.doubt(loaded=loaded)
        for draft in self.drafts.values():
            draft.step.doubt()
            draft.read.doubt()
        for host in self.host.values():
            host.doubt()
        self.drift = Recent()

    def table(self, context_tokens: int) -> CostTable:
        """Return the bucket's table; a new one starts as a copy of the nearest bucket's."""
        bucket = context_bucket(context_tokens)
        if bucket not in self.tables:
            near = min(self.tables, key=lambda other: abs(other - bucket), default=None)
            known = CostTable() if near is None else self.tables[near]
            self.tables[bucket] = CostTable(known.step, known.known_beta, widths=self.widths)
            self.tables[bucket].away = self.away
        return self.tables[bucket]

    def observe(self, cost: RoundCost, *, context_tokens: int) -> bool:
        """Learn from one round. Return whether the machine's speed has changed since the costs were last doubted.

        Costs are stored in current baseline steps, because a machine that slows down does so for all of them.
        """
        table, drift = self.table(context_tokens), drift_of(self.drift.value)
        if drift and cost.width == 1 and table.step is not None and drift_of(cost.pass_seconds / table.step) == drift:
            table.restart()
            self.drift = Recent()
        table.observe(cost.width, cost.pass_seconds, passes=1 + cost.repeats)
        if table.step is None:
            return False
        per_round = cost.host_seconds
        if cost.at_once:  # further rows cost its pass as much, in shares of one row, as they do the target's
            draft, host = self.drafts.setdefault(cost.drafter, DraftCost()), self.host.get(cost.drafter)
            if cost.read > PROMPT:
                if draft.step.value is not None and host is not None and host.value is not None:
                    known = host.value + cost.steps * draft.step.value
                    spent = (per_round + cost.draft_seconds) / table.step
                    draft.read.observe(max(0.0, spent - known) / (cost.read - 2))
                return table.has_moved
            slope = min(1.0, (table.c(cost.steps + 1) - 1) / cost.steps)
            step = slope * cost.draft_seconds / (1 + slope * (cost.steps - 1))
            reading = max(0, cost.read - 2) * (draft.read.value or 0.0) * table.step
            per_round = max(0.0, per_round + cost.draft_seconds - step * cost.steps - reading)
            draft.step.observe(step / table.step)
        elif cost.draft_seconds > 0:
            self.drafts.setdefault(cost.drafter, DraftCost()).observe(cost, plain_step=table.step)
        self.host.setdefault(cost.drafter, Recent(most=STEADY)).observe(per_round / table.step)
        return table.has_moved

    def drifted(self, ratio: float, drafter: str) -> float:
        """Record a round's ratio of measured to predicted time; return the median of recent rounds."""
        timed = self.host.get(drafter)
        if timed is None or timed.few:  # the prediction was a guess, so its error is not the machine's
            return min(ratio, OUTLIER)
        if self.drift.few:  # the median could be an interrupted round
            ratio = min(ratio, OUTLIER)
        self.drift.observe(ratio)
        assert self.drift.value is not None
        return self.drift.value

    def is_due(self, rounds: int, *, context_tokens: int) -> bool:
        """Return whether to measure a baseline pass: sooner if rounds deviate from their predictions."""
        most = ENOUGH if drift_of(self.drift.value) else MEASURE
        return self.table(context_tokens).is_due(rounds, most=most)


def context_bucket(context_tokens: int) -> int:
    """Return the index of the bucket for this many tokens."""
    return bisect_left(CONTEXT_BUCKETS, context_tokens)
