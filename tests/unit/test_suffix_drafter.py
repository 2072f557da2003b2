"""The suffix drafter, and the store of past outputs that sessions with `remember` share."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.drafters.automaton import TOKEN_NBYTES as STORED_NBYTES
from edgedecode.drafters.past import PastOutputs, PastReader, following
from edgedecode.drafters.suffix import (
    GROWTH,
    LONGEST_MATCH,
    SHORTEST_MATCH,
    TOKEN_NBYTES,
    SuffixDrafter,
    SuffixSource,
)
from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise
from tests.toys import draft_setting

NOISE = Noise(0)


def drafter(*, ends: frozenset[int] = frozenset(), past: PastOutputs | None = None) -> SuffixDrafter:
    return SuffixDrafter(Budget().reserve("index", 0), ends=ends, past=past)


def answers(made: SuffixDrafter, prompt: Sequence[int], *tokens: int) -> None:
    """Let a generation emit `tokens` in rounds that the drafter does not observe."""
    context = list(prompt)
    made.begin(context)
    context += tokens


def brute_force(context: Sequence[int], limit: int) -> tuple[tuple[int, ...], int]:
    """Return the continuation of the latest match of the longest suffix, repeated, and the length of that suffix."""
    for matched in range(len(context) - 1, SHORTEST_MATCH - 1, -1):
        suffix = list(context[len(context) - matched :])
        for end in range(len(context) - 1, matched - 1, -1):
            if list(context[end - matched : end]) == suffix:
                run = list(context[end:])
                length = min(limit, 1 + GROWTH * matched)
                return tuple((run * length)[:length]), matched
    return (), 0


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 16))
def test_suffix_proposes_what_brute_force_finds(context: list[int], limit: int) -> None:
    made = drafter()
    made.begin(context)
    draft = made.propose(context, limit, NOISE)
    assert (draft.tokens, draft.match) == brute_force(context, limit)


def test_suffix_drops_the_index_of_another_conversation() -> None:
    made = drafter()
    made.begin([1, 2, 3, 4, 1, 2])
    assert made.propose([1, 2, 3, 4, 1, 2], 2, NOISE).tokens == (3, 4)
    made.begin([9, 9, 9, 8, 1, 2])
    assert made.propose([9, 9, 9, 8, 1, 2], 8, NOISE).tokens == ()
    made.begin([9, 9])
    assert made.propose([9, 9], 8, NOISE).tokens == ()


def test_suffix_does_not_read_the_context_before_the_first_draft() -> None:
    class Unread(list[int]):
        def __iter__(self):  # type: ignore[no-untyped-def, override]
            raise AssertionError("it was read")

        def __getitem__(self, place):  # type: ignore[no-untyped-def, override]
            raise AssertionError("it was read")

    made = drafter()
    made.begin(Unread([1, 2, 3]))
    made.begin([1, 2])


@pytest.mark.parametrize("ids", [(1, 2, 3, 4), (0xD800, 0xDFFF, 0xFEFF, 0x10FFFF), (70_000, 255, 0xFFFE, 0)], ids=str)
def test_suffix_handles_any_token_id(ids: tuple[int, ...]) -> None:
    context = [*ids, 9, *ids[:2]]
    made = drafter()
    made.begin(context)
    assert made.propose(context, 2, NOISE).tokens == ids[2:]


def test_suffix_follows_the_most_recent_of_long_matches() -> None:
    piece = list(range(10, 10 + LONGEST_MATCH))
    context = [1, 2, *piece, 3, *piece, 4, 1, 2, *piece]  # the earlier match is two tokens longer
    made = drafter()
    made.begin(context)
    draft = made.propose(context, 1, NOISE)
    assert (draft.tokens, draft.match) == ((4,), LONGEST_MATCH)


def test_suffix_draft_that_reaches_the_end_repeats_itself() -> None:
    context = [1, 2, 3, 1, 2, 3, 1]
    made = drafter()
    made.begin(context)
    assert made.propose(context, 7, NOISE).tokens == (2, 3, 1, 2, 3, 1, 2)


def test_suffix_uses_less_memory_than_it_leases() -> None:
    context = [1_000_000 + token for token in range(20_000)]
    made = drafter()
    made.begin(context)
    tracemalloc.start()
    for length in (10_000, 10_001, 20_000):
        made.propose(context[:length], 4, NOISE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 20_000 * (TOKEN_NBYTES + 16)  # the slices of the context belong to this test


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_suffix_sees_that_the_last_tokens_occur_before(context: list[int], length: int) -> None:
    ends = range(length, len(context))
    occurs = any(context[end - length : end] == context[-length:] for end in ends)
    assert drafter().repeats(context, length) is occurs


def test_suffix_draft_stops_at_an_end_token() -> None:
    context = [1, 2, 3, 7, 4, 5, 1, 2, 3]
    assert drafter().propose(context, 3, NOISE).tokens == (7, 4, 5)
    assert drafter(ends=frozenset({7})).propose(context, 8, NOISE).tokens == (7,)


# -- past outputs ------------------------------------------------------------------------------------------------------

ANSWER = list(range(20, 40))


def test_suffix_drafts_from_the_output_of_another_session() -> None:
    past = PastOutputs()
    first, second = drafter(past=past), drafter(past=past)
    answers(first, [1, 2], *ANSWER)
    assert second.propose([5, 20, 21], 4, NOISE).tokens == ()
    first.begin([3])  # the next generation: the output of the one before is kept
    second.begin([5, 20])
    draft = second.propose([5, 20, 21], 4, NOISE)
    assert draft.tokens == tuple(ANSWER[2:6])
    assert draft.match == 2
    assert second.propose([5, 20, 21, 22], 99, NOISE).tokens == tuple(ANSWER[3 : 3 + 1 + GROWTH * 3])
    assert second.propose([5, 20, 21, 22, *ANSWER[3:19]], 99, NOISE).tokens == (39,)  # the draft ends with the output
    assert second.propose([5, 20, 21, 22, *ANSWER[3:20]], 99, NOISE).tokens == ()


def test_close_of_a_suffix_drafter_keeps_its_last_output() -> None:
    past = PastOutputs()
    first = drafter(past=past)
    answers(first, [1], *ANSWER)
    first.close()
    assert past.version == 1


def test_suffix_prefers_the_conversation_to_the_store_where_both_match() -> None:
    past = PastOutputs()
    past.add([1, 2, 3, 50, 51, 52, 53, 54])
    made = drafter(past=past)
    context = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    made.begin(context)
    assert made.propose(context, 2, NOISE).tokens == (4, 5)
    longer = [9, 9, 2, 3, 4, 1, 2, 3]  # two tokens match here, three there
    made.begin(longer)
    draft = made.propose(longer, 2, NOISE)
    assert (draft.tokens, draft.match) == ((50, 51), 3)


def test_suffix_finds_an_output_that_arrives_during_prefill() -> None:
    past = PastOutputs()
    made = drafter(past=past)
    made.begin([7])
    context = [7, 20, 21, 22]
    assert made.propose(context, 3, NOISE).tokens == ()
    past.add(ANSWER)
    assert made.propose([*context, 23], 2, NOISE).tokens == (24, 25)


def test_past_outputs_evict_the_oldest_first() -> None:
    past = PastOutputs(capacity=64)
    outputs = [[100 * number + index for index in range(20)] for number in range(1, 7)]
    for output in outputs:
        past.add(output)
    found = []
    for output in outputs:
        reader = PastReader(past)
        reader.read(output[:4])
        cursor = reader.best()
        found.append([] if cursor is None else following(cursor, 3))
    assert found[-1] == outputs[-1][4:7]
    assert found[0] == []
    assert sum(len(automaton) for automaton in past.automata) <= 64
    kept = [bool(tokens) for tokens in found]
    assert kept == sorted(kept)


def test_past_outputs_keep_the_end_of_an_output_longer_than_the_store() -> None:
    past = PastOutputs(capacity=64)
    past.add(list(range(1000)))
    reader = PastReader(past)
    reader.read([995, 996])
    cursor = reader.best()
    assert cursor is not None
    assert following(cursor, 9) == [997, 998, 999]
    assert len(past.automata[0]) <= 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the file of remembered outputs in a temporary folder."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False), (True, True)])
def test_a_conversation_drafts_from_another_only_if_both_ask_for_it(*, first: bool, second: bool) -> None:
    source = SuffixSource()
    one, other = (source.open(draft_setting(10, remember=remember, capacity=100)) for remember in (first, second))
    assert isinstance(one, SuffixDrafter)
    answers(one, [1, 2], *ANSWER)
    one.close()
    other.begin([5, 20])
    assert other.propose([5, 20, 21], 1, NOISE).tokens == ((22,) if first and second else ())
    source.close()


@pytest.mark.usefixtures("cache")
def test_past_outputs_are_leased_as_they_grow_and_released_by_the_source() -> None:
    budget = Budget()
    source = SuffixSource()
    first = source.open(draft_setting(10, budget=budget, capacity=100, remember=True))
    second = source.open(draft_setting(10, budget=budget, capacity=100, remember=True))
    assert budget.used_nbytes == first.nbytes + second.nbytes
    assert isinstance(first, SuffixDrafter)
    answers(first, [1, 2], *ANSWER)
    first.close()
    second.close()
    assert budget.used_nbytes == STORED_NBYTES * (len(ANSWER) + 1)
    source.close()
    source.close()
    assert budget.used_nbytes == 0


def test_past_outputs_when_full_lease_no_more_than_they_keep() -> None:
    budget = Budget()
    with budget.reserve("past outputs", 0) as lease:
        past = PastOutputs(capacity=64, lease=lease)
        for start in range(40):
            past.add([100 * start + index for index in range(20)])
            assert lease.nbytes == STORED_NBYTES * sum(len(automaton) for automaton in past.automata)


@pytest.mark.usefixtures("cache")
def test_past_outputs_are_evicted_for_other_memory() -> None:
    budget = Budget(200_000)
    source = SuffixSource()
    made = source.open(draft_setting(10, budget=budget, capacity=100, remember=True))
    assert isinstance(made, SuffixDrafter)
    answers(made, [1, 2], *ANSWER)
    made.begin([5])
    assert made.propose([5, 20, 21], 1, NOISE).tokens == (22,)
    rest = 200_000 - made.nbytes
    with budget.reserve("a draft model", rest):
        assert budget.used_nbytes == made.nbytes + rest
        assert made.propose([5, 20, 21, 22], 1, NOISE).tokens == ()
        answers(made, [5, 20, 21, 22], *ANSWER)
        made.begin([5])
        assert made.propose([5, 20, 21], 1, NOISE).tokens == ()
    again = source.open(draft_setting(10, budget=budget, capacity=100, remember=True))
    assert budget.used_nbytes == made.nbytes + again.nbytes


def test_past_outputs_that_do_not_fit_are_not_kept() -> None:
    budget = Budget(STORED_NBYTES * 50)
    with budget.reserve("past outputs", 0, priority=-1) as lease:
        past = PastOutputs(lease=lease)
        past.add(ANSWER)
        assert lease.nbytes == STORED_NBYTES * 21
        with budget.reserve("a prompt", STORED_NBYTES * 20):
            past.add(ANSWER)
            assert lease.nbytes == STORED_NBYTES * len(past.automata[0]) == STORED_NBYTES * 21
        past.add(ANSWER)
        assert lease.nbytes == STORED_NBYTES * 42
    past.add(ANSWER)  # released
    assert len(past.automata[0]) == 42


def test_suffix_drafts_from_the_conversation_without_room_for_the_store() -> None:
    budget = Budget(100_000)
    made = SuffixSource().open(draft_setting(10, budget=budget, capacity=100))
    assert made.nbytes == budget.used_nbytes > 0
    context = [1, 2, 3, 1, 2]
    made.begin(context)
    assert made.propose(context, 1, NOISE).tokens == (3,)
    with pytest.raises(BudgetExceeded, match="suffix index"):
        SuffixSource().open(draft_setting(10, budget=budget, capacity=10**6))
