"""The suffix automaton, against brute force."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.drafters.automaton import TOKEN_NBYTES, Cursor, SuffixAutomaton

texts = st.lists(st.integers(0, 2), max_size=40)


def longest_earlier_suffix(text: Sequence[int]) -> int:
    """The length of the longest suffix that also ends before the text's end."""
    for length in range(len(text) - 1, 0, -1):
        if ends_of(text[:-1], text[len(text) - length :]):
            return length
    return 0


def ends_of(text: Sequence[int], piece: Sequence[int]) -> list[int]:
    size = len(piece)
    return [end - 1 for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(piece)]


@given(texts)
def test_the_match_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    made = SuffixAutomaton()
    for length, token in enumerate(text, start=1):
        made.extend([token])
        seen = text[:length]
        assert made.match.length == longest_earlier_suffix(seen)
        if made.match.length:
            suffix = seen[length - made.match.length :]
            assert made.match.place == ends_of(seen[:-1], suffix)[-1]  # the most recent one


@given(texts, st.lists(st.integers(0, 3), max_size=20))
def test_a_cursor_knows_the_longest_suffix_of_another_text(text: list[int], other: list[int]) -> None:
    made = SuffixAutomaton()
    made.extend(text)
    cursor = Cursor(made)
    for length in range(1, len(other) + 1):
        cursor.read(other[length - 1 : length])
        longest = next(n for n in range(length, -1, -1) if n == 0 or ends_of(text, other[length - n : length]))
        assert cursor.match.length == longest
        if longest:
            assert cursor.match.place in ends_of(text, other[length - longest : length])


@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_a_cursor_at_the_end_goes_on_from_there(text: list[int], extra: list[int]) -> None:
    made = SuffixAutomaton()
    made.extend(text)
    cursor = Cursor(made, at_end=True)
    cursor.read(extra)
    whole = [*text, *extra]
    longest = next(n for n in range(len(whole), -1, -1) if n == 0 or ends_of(text, whole[len(whole) - n :]))
    assert cursor.match.length == longest
    assert len(made) == len(text)


@given(texts, st.integers(1, 39))
def test_pieces_make_the_same_index_as_the_whole(text: list[int], cut: int) -> None:
    whole, pieces = SuffixAutomaton(), SuffixAutomaton()
    whole.extend(text)
    pieces.extend(text[:cut])
    pieces.extend(text[cut:])
    assert whole.match == pieces.match
    assert whole.tokens == pieces.tokens


def test_a_continuation_that_reaches_the_end_repeats_itself() -> None:
    made = SuffixAutomaton()
    made.extend([1, 2, 3, 1, 2, 3, 1])
    assert made.following(made.match.place, 7) == [2, 3, 1, 2, 3, 1, 2]
    assert made.following(made.match.place, 6, extra=[9]) == [2, 3, 1, 9, 2, 3]
    assert made.following(0, 2) == [2, 3]


TEXTS = {
    "words": random.Random(0).choices([3, 5, 8, 900], k=8000),
    "noise": [random.Random(1).randrange(8000) for _ in range(8000)],
    "bits": [random.Random(2).randrange(2) for _ in range(8000)],
    "one": [7] * 8000,
    "halves": [1] + [2] * 4000 + [3] + [2] * 3998,
}


@pytest.mark.parametrize("name", TEXTS)
def test_its_memory_is_below_what_is_leased(name: str) -> None:
    text = TEXTS[name]
    tracemalloc.start()
    made = SuffixAutomaton()
    made.extend(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made) == 8000
    assert peak <= TOKEN_NBYTES * len(text)


def test_repetitive_text_makes_few_states() -> None:
    """Work and memory are linear: at most two states a token, whatever the text."""
    for text in TEXTS.values():
        made = SuffixAutomaton()
        made.extend(text)
        assert len(made._links) <= 2 * len(text)
