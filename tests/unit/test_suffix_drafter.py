"""The suffix drafter."""

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.drafters.suffix import GROWTH, SHORTEST_MATCH, TOKEN_NBYTES, SuffixDrafter
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise

NOISE = Noise(0)


def drafter(*, ends: frozenset[int] = frozenset()) -> SuffixDrafter:
    return SuffixDrafter(Budget().reserve("index", 0), ends=ends)


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
