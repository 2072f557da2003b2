"""The predicted speed-up of each vocabulary size, and the choice among them.

S(k) = tokens per round / (c(k + 1) + k·d): the speed-up over plain decoding, where c is the measured cost of a target
pass by width and d that of a draft step, both in single-token target passes (Leviathan 2211.17192).
"""

from dataclasses import dataclass

from .forced_acceptance import LENGTHS, Acceptance
from .id_ranking import COVERAGE
from .timing import PassTimes

MARGIN = 1.005
"""A chosen size's S is at least this many times the full draft's: smaller gains are below measurement noise."""
LEAST_TOKENS = 200
"""Below this number of held-out tokens no size is chosen: the coverage of fewer is unreliable."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One vocabulary size, at its best draft length. The full vocabulary has the size of all ids."""

    size: int
    acceptance: Acceptance
    step_seconds: float
    length: int
    speed_up: float

    @property
    def per_round(self) -> float:
        """Tokens per round, the target's own included."""
        return self.acceptance.per_round[self.length]


@dataclass(frozen=True, slots=True)
class Sizes:
    """All measured sizes, ascending, and the full vocabulary."""

    rows: tuple[SizeRow, ...]
    whole: SizeRow

    def row(self, size: int) -> SizeRow:
        return next(row for row in self.rows if row.size == size)

    @property
    def best(self) -> SizeRow | None:
        """The size with the best S among those with enough coverage that are faster than the full draft, if any."""
        enough = [row for row in self.rows if row.acceptance.coverage >= COVERAGE and self._tokens >= LEAST_TOKENS]
        faster = [row for row in enough if row.speed_up > MARGIN * self.whole.speed_up]
        return max(faster, key=lambda row: (row.speed_up, -row.size), default=None)

    def reason(self) -> str:
        """Return why no size is chosen."""
        if self._tokens < LEAST_TOKENS:
            return f"{self._tokens} held-out tokens are too few, {LEAST_TOKENS} are needed: give more prompts"
        covered = [row for row in self.rows if row.acceptance.coverage >= COVERAGE]
        if not covered:
            most = max(self.rows, key=lambda row: row.acceptance.coverage)
            found = f"{most.size} ids cover {most.acceptance.coverage:.1%}"
            return f"no size covers {COVERAGE:.0%} of the held-out tokens; {found}"
        row = max(covered, key=lambda row: row.speed_up)
        return f"the best size, {row.size} ids, has S {row.speed_up:.3f}, the full draft {self.whole.speed_up:.3f}"

    @property
    def _tokens(self) -> int:
        return self.whole.acceptance.tokens


def size_row(size: int, acceptance: Acceptance, target: PassTimes, *, step_seconds: float) -> SizeRow:
    """Return a size at its best draft length."""
    d = step_seconds / target.seconds[1]
    speeds = {length: acceptance.per_round[length] / (target.c(length + 1) + length * d) for length in LENGTHS}
    length = max(speeds, key=lambda length: speeds[length])
    return SizeRow(size, acceptance, step_seconds, length, speeds[length])
