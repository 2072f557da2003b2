"""The recycle drafter: drafts from rows of earlier logits, with a bound on the rows searched per round."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.verify import TargetRows, verify
from edgedecode.drafters import recycle
from edgedecode.drafters.recycle import BREADTH, RecycleDrafter, RecycleSource
from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.toys import draft_setting

NOISE = Noise(0)
VOCABULARY = 40


def drafter(**setting: object) -> RecycleDrafter:
    made = RecycleSource().open(draft_setting(VOCABULARY, **setting))  # type: ignore[arg-type]
    assert isinstance(made, RecycleDrafter)
    return made


def rows_after(tokens: Sequence[int], *, step: int = 1) -> TargetRows:
    """Return rows whose most likely id is the token plus `step`, followed by the next higher ids."""
    logits = np.zeros((len(tokens), VOCABULARY + 3), dtype=np.float32)
    logits[:, VOCABULARY:] = 99.0
    for row, token in enumerate(tokens):
        for rank in range(BREADTH):
            logits[row, (token + step + rank) % VOCABULARY] = 20.0 - rank
    return TargetRows(logits, Sampler(SamplingOptions(), vocabulary_size=VOCABULARY))


def emit(made: RecycleDrafter, context: list[int], draft: Draft, *, step: int = 1) -> list[int]:
    """Run a round on a target that counts up by `step`; return the context after it."""
    verdict = verify(draft, rows_after([context[-1], *draft.tokens], step=step), Noise(0))
    after = [*context, *verdict.tokens]
    made.observe(after, verdict)
    return after


def test_recycle_chains_followers_and_never_padding() -> None:
    made = drafter()
    context = [0]
    for _ in range(VOCABULARY):
        context = emit(made, context, Draft())
    assert made._table.followers.max() < VOCABULARY
    assert made.propose([5], 3, NOISE).tokens == (6, 7, 8)
    assert made.propose([5], 2, NOISE).tokens == (6, 7)
    assert made.propose([VOCABULARY - 1], 2, NOISE).tokens == (0, 1)


def test_recycle_learns_from_rejected_rows() -> None:
    made = drafter()
    emit(made, [3], Draft((9, 20)))  # the target's choice is 4
    assert made.propose([3], 1, NOISE).tokens == (4,)
    assert made.propose([9], 1, NOISE).tokens == (10,)
    assert made.propose([20], 1, NOISE).tokens == (21,)
    assert made.propose([4], 1, NOISE).tokens == ()


def test_recycle_drafts_longer_after_hits_and_shorter_after_misses() -> None:
    made = drafter()
    context = [0]
    for _ in range(3 * VOCABULARY):
        context = emit(made, context, made.propose(context, 8, NOISE))
    long = len(made.propose([5], 8, NOISE))
    assert long == 8
    assert made._table.rate(0, 0) > 0.9
    for _ in range(6):
        for token in range(VOCABULARY):
            made._table.score(0, token, (token + 30) % VOCABULARY)  # from now on every guess misses
    assert made._table.rate(0, 0) < 0.1
    assert made.propose([5], 8, NOISE) == Draft()


class CountingRows(TargetRows):
    """Record which rows were searched."""

    def __init__(self, rows: TargetRows) -> None:
        super().__init__(rows.logits, rows._sampler)
        self.asked: list[int] = []

    def top(self, k: int, row: int) -> IntArray:
        self.asked.append(row)
        return super().top(k, row)


@pytest.mark.parametrize(
    ("budget", "asked"), [(1, [1]), (2 * VOCABULARY, [0, 1]), (3 * VOCABULARY, [2, 0, 1]), (99 * VOCABULARY, None)]
)
def test_recycle_limits_the_rows_it_searches_of_a_large_vocabulary(
    budget: int, asked: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the correction comes first, then the accepted rows before it, then rejected ones."""
    monkeypatch.setattr(recycle, "ROW_BUDGET", budget)
    made = drafter()
    rows = CountingRows(rows_after([3, 4, 9, 20]))
    verdict = verify(Draft((4, 9, 20)), rows, Noise(0))
    assert verdict.tokens == (4, 5)
    made.observe([3, 4, 5], verdict)
    assert rows.asked == (asked or [3, 2, 0, 1])


def test_recycle_draft_stops_at_an_end_token() -> None:
    made = drafter(ends=frozenset({7}))
    context = [0]
    for _ in range(2 * VOCABULARY):
        context = emit(made, context, Draft())
    assert made.propose([5], 8, NOISE).tokens == (6, 7)


def test_recycle_sessions_have_tables_of_their_own_that_they_lease_and_release() -> None:
    budget = Budget(2 * VOCABULARY * BREADTH * 4)
    source = RecycleSource()
    first, second = (source.open(draft_setting(VOCABULARY, budget=budget)) for _ in range(2))
    assert isinstance(first, RecycleDrafter)
    assert first.nbytes == second.nbytes == first._table.followers.nbytes == VOCABULARY * BREADTH * 4
    emit(first, [3], Draft())
    assert first.propose([3], 1, NOISE).tokens == (4,)
    assert second.propose([3], 1, NOISE).tokens == ()
    with pytest.raises(BudgetExceeded, match="recycled logits"):
        drafter(budget=budget)
    first.close()
    second.close()
    assert budget.used_nbytes == 0


def test_recycle_forgets_a_conversation_that_another_one_follows() -> None:
    made = drafter()
    made.begin(context := [3])
    emit(made, context, Draft())
    made.begin([3, 9])
    assert made.propose([3], 1, NOISE).tokens == (4,)
    made.begin([5, 3])
    assert made.propose([3], 1, NOISE).tokens == ()


def test_recycle_searches_rarely_while_it_misses_and_recovers() -> None:
    made = drafter()

    def rounds(count: int, *, step: int) -> int:
        asked = 0
        for number in range(count):
            rows = CountingRows(rows_after([3], step=step * number + 1))
            verdict = verify(Draft(), rows, Noise(0))
            made.observe([3, *verdict.tokens], verdict)
            asked += len(rows.asked)
        return asked

    assert rounds(5, step=0) == 5
    rounds(100, step=11)  # no token has the same follower twice in a row
    assert rounds(80, step=11) == 80 // recycle.SELDOM
    rounds(400, step=0)
    assert rounds(80, step=0) == 80
