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


def ends_of(text: Sequence[int], piece: Sequence[int]) -> list[int]:
    size = len(piece)
    return [end - 1 for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(piece)]


@given(texts, st.lists(st.integers(0, 3), max_size=20))
def test_cursor_finds_the_longest_suffix_of_another_text(text: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    cursor = Cursor(automaton)
    for length in range(1, len(other) + 1):
        cursor.read(other[length - 1 : length])
        longest = next(n for n in range(length, -1, -1) if n == 0 or ends_of(text, other[length - n : length]))
        assert cursor.match.length == longest
        if longest:
            assert cursor.match.place in ends_of(text, other[length - longest : length])


@given(texts, st.integers(1, 39))
def test_automaton_built_in_pieces_equals_one_built_at_once(text: list[int], cut: int) -> None:
    whole, pieces = SuffixAutomaton(), SuffixAutomaton()
    whole.extend(text)
    pieces.extend(text[:cut])
    pieces.extend(text[cut:])
    assert [getattr(whole, name) for name in whole.__slots__] == [getattr(pieces, name) for name in pieces.__slots__]


TEXTS = {
    "words": random.Random(0).choices([3, 5, 8, 900], k=8000),
    "noise": [random.Random(1).randrange(8000) for _ in range(8000)],
    "bits": [random.Random(2).randrange(2) for _ in range(8000)],
    "one": [7] * 8000,
    "halves": [1] + [2] * 4000 + [3] + [2] * 3998,
}


@pytest.mark.memory
@pytest.mark.parametrize("name", TEXTS)
def test_automaton_needs_no_more_memory_than_is_leased(name: str) -> None:
    text = TEXTS[name]
    tracemalloc.start()
    automaton = SuffixAutomaton()
    automaton.extend(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(automaton) == 8000
    assert peak <= TOKEN_NBYTES * len(text)


def test_automaton_has_at_most_two_states_per_token() -> None:
    """Time and memory stay linear in the text's length, also for repetitive text."""
    for text in TEXTS.values():
        automaton = SuffixAutomaton()
        automaton.extend(text)
        assert len(automaton._links) <= 2 * len(text)
