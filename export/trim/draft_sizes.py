"""The predicted speed-up of each vocabulary size, and the choice among them.

S(k) = tokens per round / (c(k + 1) + k·d): the speed-up over plain decoding, where c is the measured cost of a target
pass by width and d that of a draft step, both in single-token target passes (Leviathan 2211.17192).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .forced_acceptance import LENGTHS, Acceptance
from .id_ranking import COVERAGE

MARGIN = 1.005
"""A chosen size's S is at least this many times the full draft's: smaller gains are below measurement noise."""
LEAST_TOKENS = 200
"""Below this number of held-out tokens no size is chosen: the coverage of fewer is unreliable."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One vocabulary size, at its best draft length. The full vocabulary has the size of all ids."""

    size: int
    tokens: int
    """Held-out tokens."""
    coverage: float
    """Share of them that the vocabulary contains."""
    tokens_per_round: float
    """The target's own included."""
    length: int
    step_seconds: float
    speed_up: float


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
        enough = [row for row in self.rows if row.coverage >= COVERAGE and row.tokens >= LEAST_TOKENS]
        faster = [row for row in enough if row.speed_up > MARGIN * self.whole.speed_up]
        return max(faster, key=lambda row: (row.speed_up, -row.size), default=None)

    def reason(self) -> str:
        """Return why no size is chosen."""
        if self.whole.tokens < LEAST_TOKENS:
            return f"{self.whole.tokens} held-out tokens are too few, {LEAST_TOKENS} are needed: give more prompts"
        covered = [row for row in self.rows if row.coverage >= COVERAGE]
        if not covered:
            most = max(self.rows, key=lambda row: row.coverage)
            return f"no size covers {COVERAGE:.0%} of the held-out tokens; {most.size} ids cover {most.coverage:.1%}"
        row = max(covered, key=lambda row: row.speed_up)
        return f"the best size, {row.size} ids, has S {row.speed_up:.3f}, the full draft {self.whole.speed_up:.3f}"


def size_row(size: int, accepted: Acceptance, target: Mapping[int, float], *, step_seconds: float) -> SizeRow:
    """Return a size at its best draft length. target: seconds of the target's passes by width."""
    rounds = accepted.per_round
    speeds = {each: rounds[each] * target[1] / (target[each + 1] + each * step_seconds) for each in LENGTHS}
    length = max(speeds, key=lambda length: speeds[length])
    return SizeRow(size, accepted.tokens, accepted.coverage, rounds[length], length, step_seconds, speeds[length])
