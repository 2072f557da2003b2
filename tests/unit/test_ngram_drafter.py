"""Drafts from the context itself, against a brute-force search."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.decoding.drafts import DraftMode
from edgedecode.decoding.sampling import Noise
from edgedecode.drafters import ngram
from edgedecode.drafters.ngram import NgramDrafter, NgramSource
from edgedecode.errors import BudgetExceeded
from edgedecode.memory import Budget
from tests.toys import draft_setting

NOISE = Noise(0)


def drafter(*, ends: frozenset[int] = frozenset()) -> NgramDrafter:
    return NgramDrafter(Budget().reserve("index", 0), ends=ends)


def brute_force(context: Sequence[int], limit: int) -> tuple[int, ...]:
    """The longest earlier match of the end, the most recent among equals; its length bounds the draft."""
    last = len(context) - 1
    best_place, best = -1, 0
    for place in range(last - 1, -1, -1):
        matched = 0
        while matched <= place and matched < 32 and context[place - matched] == context[last - matched]:
            matched += 1
        if matched > best:
            best_place, best = place, matched
    if best < 2:
        return ()
    return tuple(context[best_place + 1 : best_place + 1 + min(limit, 2 ** (best - 1))])


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 16))
def test_it_finds_what_brute_force_finds(context: list[int], limit: int) -> None:
    made = drafter()
    made.begin(context)
    draft = made.propose(context, limit, NOISE)
    assert draft.tokens == brute_force(context, limit)
    assert draft.parents is None
    assert draft.mode is DraftMode.DETERMINISTIC


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.lists(st.integers(1, 4), max_size=8))
def test_a_growing_context_is_indexed_as_a_whole_one(context: list[int], steps: list[int]) -> None:
    growing = drafter()
    length = 1
    growing.begin(context[:length])
    for step in steps:
        length = min(len(context), length + step)
        found = growing.propose(context[:length], 4, NOISE)
        fresh = drafter()
        fresh.begin(context[:length])
        assert found == fresh.propose(context[:length], 4, NOISE)


def test_another_conversation_forgets_the_old_index() -> None:
    made = drafter()
    made.begin([1, 2, 3, 4, 1, 2])
    assert made.propose([1, 2, 3, 4, 1, 2], 8, NOISE).tokens == (3, 4)
    other = [9, 9, 9, 8, 1, 2]
    made.begin(other)
    assert made.propose(other, 8, NOISE).tokens == ()
    shorter = [9, 9]
    made.begin(shorter)
    assert made.propose(shorter, 8, NOISE).tokens == ()


def test_a_draft_stops_at_an_end_token() -> None:
    context = [1, 2, 3, 7, 4, 5, 1, 2, 3]
    assert drafter().propose(context, 8, NOISE).tokens == (7, 4, 5, 1)
    assert drafter(ends=frozenset({7})).propose(context, 8, NOISE).tokens == (7,)
    assert drafter(ends=frozenset({4})).propose(context, 8, NOISE).tokens == (7, 4)


@pytest.mark.parametrize("context", [[], [1], [1, 1], [1, 2]])
def test_short_contexts_give_nothing(context: list[int]) -> None:
    made = drafter()
    made.begin(context)
    assert made.propose(context, 4, NOISE).tokens == ()


def test_repetitive_text_costs_no_more_than_other_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work per proposal is bounded: it is counted in tokens compared, not in time."""
    compared = 0

    class Counting(list[int]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
            nonlocal compared
            compared += 1
            return super().__getitem__(index)

    for context in ([5] * 3000, [1, 2, 3] * 1000, [index % 50 for index in range(3000)]):
        made = drafter()
        made.propose(context, 4, NOISE)  # the index is made here
        counting = Counting(context)
        compared = 0
        assert len(made.propose(counting, 4, NOISE)) > 0
        assert compared < 4 * ngram._CANDIDATES + 4 * ngram._LONGEST_MATCH


def test_an_interrupt_while_indexing_is_noticed_at_the_next_begin() -> None:
    context = [1, 2, 3, 4, 1, 2]
    made = drafter()
    made.propose(context, 4, NOISE)
    made._tokens.append(context[-1])  # as if the index had been left between two appends
    made.begin([*context, 3, 4, 1, 2])
    assert made.propose([*context, 3, 4, 1, 2], 4, NOISE).tokens == (3, 4, 1, 2)


def test_its_memory_is_leased_and_given_back() -> None:
    budget = Budget(1_000_000)
    made = NgramSource().open(draft_setting(10, budget=budget, capacity=100))
    assert made.nbytes == budget.used_nbytes > 0
    made.close()
    assert budget.used_nbytes == 0
    with pytest.raises(BudgetExceeded, match="n-gram index"):
        NgramSource().open(draft_setting(10, budget=budget, capacity=10**6))
