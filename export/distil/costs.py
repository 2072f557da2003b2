"""What passes cost here, and the speed that an acceptance promises."""

from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edgedecode.decoding.model import LanguageModel

from .acceptance import MOST_DEPTH, Acceptance

_POSITIONS, _TIMES = 256, 7
_BITS = 4.5
"""A weight in the pack, scales included."""
_READ = 1.3
"""Reading what was accepted, with features, in steps of the head."""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """seconds: of a pass of one row. rows: passes of 1, 2, ... rows, in those of one."""

    seconds: float
    rows: tuple[float, ...]
    weights_nbytes: int
    """What such a pass reads."""

    def speed_up(self, acceptance: Acceptance, *, parameters: int) -> float:
        """Return the speed with the best fixed draft length over plain decoding, with drafts of that many parameters.

        A step of it takes the time of its bytes, as passes of a row do.
        """
        step = parameters * _BITS / 8 / self.weights_nbytes
        lengths = range(1, len(self.rows))
        return max(acceptance.length(each) / (self.rows[each] + step * (each - 1 + _READ)) for each in lengths)


def pass_costs(model: LanguageModel, *, weights_nbytes: int) -> PassCosts:
    """Time passes at some positions, in turns."""
    widths = range(1, MOST_DEPTH + 2)
    positions = min(_POSITIONS, model.card.context - len(widths))
    seconds: dict[int, list[float]] = {width: [] for width in widths}
    with closing(model.new_state(positions + len(widths), rows=positions)) as state:
        model.forward([0] * positions, state, rows="none")
        state.keep(range(positions))
        for _ in range(_TIMES):
            for width in widths:
                started = perf_counter()
                model.forward([0] * width, state, rows="all")
                seconds[width].append(perf_counter() - started)
                state.crop(positions)
    one = median(seconds[1])
    return PassCosts(one, tuple(median(each) / one for each in seconds.values()), weights_nbytes)
