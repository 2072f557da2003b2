"""Prices of rounds from learnt costs, and the draft length with the best expected speed-up."""

from collections.abc import Iterable

from edgedecode.decoding.policy import ASKED, NO_DRAFTER

from .cost_model import CostModel
from .cost_table import WIDEST, CostTable
from .draft_cost import GUESS

KNEE = 1.5
"""If the next row costs this many times the mean of the rows before it, the kernels' tiles cause it, not noise."""


def step_seconds(costs: CostModel, context_tokens: int) -> float | None:
    """Return the seconds per token of plain decoding, with host overhead; None while unknown."""
    table = costs.table(context_tokens)
    return None if table.step is None else table.step * Prices(costs, table, table.step).plain


class Prices:
    """Costs in one context bucket, in baseline steps of `seconds`. plain: a baseline round, with its host overhead."""

    __slots__ = ("_costs", "_curve", "_table", "plain", "seconds")

    def __init__(self, costs: CostModel, table: CostTable, seconds: float) -> None:
        self._costs, self._table, self.seconds = costs, table, seconds
        self._curve = table.curve()
        self.plain = 1 + self.host(NO_DRAFTER)

    @property
    def fitted(self) -> int:
        """A number that changes with the curve of passes."""
        return self._table.fits

    def host(self, drafter: str, *, least: bool = False) -> float:
        """Return the host overhead of a round of this drafter. least: as in `step`."""
        hosts = self._costs.host
        known = hosts.get(drafter)
        if known is None or known.value is None:
            if drafter == NO_DRAFTER:
                return GUESS.host
            return self.host(NO_DRAFTER) + (0.0 if drafter == ASKED else GUESS.draft_seconds / self.seconds)
        return min(known.value, self.host(ASKED)) if least and known.few and drafter != ASKED else known.value

    def step(self, drafter: str, *, least: bool = False) -> float:
        """Return the cost of one token drafted with a model.

        least: an optimistic value while there are few measurements, which may have been cold or under load.
        """
        known, more = self._costs.drafts.get(drafter), GUESS.step_seconds / self.seconds
        if known is None or known.step.value is None:
            return GUESS.step + more
        return min(known.step.value, 2 * GUESS.step + more) if least and known.step.few else known.step.value

    def read(self, drafter: str, *, least: bool = False) -> float:
        """Return the cost per token of the prefill of a drafter's model. least: as in `step`."""
        known = self._costs.drafts.get(drafter)
        if known is None or known.read.value is None:
            return GUESS.read
        return min(known.read.value, GUESS.read) if least and known.read.few else known.read.value

    def more(self, length: int, *, step: float) -> float:
        """Return the cost of one more drafted token: its row in the target's pass; its drafting in a fixed width."""
        return step if self._table.widths else (self._table.c(length + 2) - self._curve[2]) / length

    @property
    def padded(self) -> bool:
        """Whether passes of several rows have a large fixed part: of fixed widths, as on an NPU, or over a network."""
        return bool(self._table.widths) or self._table.away > self.seconds / 2

    def slack(self, length: int, most: int) -> int:
        """Return a draft length up to `most` tokens longer, unless the next row is dearer than the ones before it."""
        if not (widths := self._table.widths):
            last, after = self._table.c(length + 1), self._table.c(length + 2)
            dearer = (after - last) * (length - 1) > KNEE * (last - self._curve[2])
            return length if dearer else length + most
        from .fixed_widths import fixed_width

        return min(length + most, max(length, fixed_width(length + 1, widths) - 1))

    def round(self, length: int, *, step: float = 0.0, host: float = 0.0, least: bool = False) -> float:
        """Return the cost of a round that drafts `length` tokens, in baseline rounds. least: as in `best_length`."""
        width = length + 1
        rows = self._table.curve(least=True)[min(width, WIDEST)] if least else self._table.c(width)
        return (rows + length * step + host) / self.plain

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
        """Return the draft length, from 1 to `longest`, with the best speed-up, and that speed-up.

        alive: for each position, the chance that the draft is accepted up to it. stops: share of failing drafts that
        their model ends itself; the others are drafted to their full length. least: use optimistic costs of passes.
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
            elif tokens + chance * (longest - length) < best * cost:  # even if the rest were as likely, and free
                break
        return best_length, best * self.plain
