"""Parts of a vocabulary: trimmed ones and their maps, local ones and what goes when they are full."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.drafters.local_vocabulary import LocalVocabulary
from edgedecode.errors import InputError, ManifestError
from edgedecode.pack.token_map import read_token_ids, write_token_ids

IDS = np.array([0, 3, 4, 300])


def test_it_knows_its_ids_and_nothing_else() -> None:
    known = TrimmedVocabulary(IDS, 301)
    assert [token for token in range(-2, 310) if token in known] == IDS.tolist()
    assert len(known) == 4
    assert known.share_of([0, 1, 3, 3]) == 0.75
    assert known.share_of([]) == 0


@pytest.mark.parametrize("ids", [[], [3, 2], [2, 2], [-1, 2], [5, 301]], ids=str)
def test_ids_that_are_no_map_are_refused(ids: list[int]) -> None:
    with pytest.raises(InputError, match="must ascend"):
        TrimmedVocabulary(np.array(ids, np.int64), 301)


def test_a_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trim.ids"
    write_token_ids(path, IDS)
    assert path.stat().st_size == 16
    assert read_token_ids(path, rows=4, vocabulary_size=301).ids.tolist() == IDS.tolist()


@pytest.mark.parametrize(("rows", "size"), [(3, 301), (5, 301), (4, 300)])
def test_a_map_that_does_not_fit_its_draft_is_refused(tmp_path: Path, rows: int, size: int) -> None:
    path = tmp_path / "trim.ids"
    write_token_ids(path, IDS)
    with pytest.raises(ManifestError, match="edgedecode trim"):
        read_token_ids(path, rows=rows, vocabulary_size=size)
    with pytest.raises(ManifestError, match="cannot be read"):
        read_token_ids(tmp_path / "none", rows=4, vocabulary_size=301)


def local(**setting: object) -> LocalVocabulary:
    return LocalVocabulary(**{"size": 100, "most": 10, "always": (0, 1), **setting})  # type: ignore[arg-type]


def test_the_newest_stay_and_those_that_are_always_there() -> None:
    vocabulary = local()
    vocabulary.begin(range(10, 40))
    assert vocabulary.ids.tolist() == [0, 1, *range(33, 40)]  # one place is left for what comes next
    vocabulary.add([50])
    assert vocabulary.ids.tolist() == [0, 1, *range(33, 40), 50]
    vocabulary.add([51])
    assert vocabulary.ids.tolist() == [0, 1, *range(35, 40), 50, 51]
    vocabulary.add([35])  # seen again, hence new
    vocabulary.add([52, 53])
    assert {35, 50, 51, 52, 53} <= set(vocabulary.ids.tolist())
    assert 36 not in vocabulary.ids


def test_what_is_known_changes_nothing() -> None:
    vocabulary = local()
    vocabulary.begin([5, 6])
    before = vocabulary.ids
    vocabulary.add([6, 5, 0])
    assert vocabulary.ids is before


def test_another_text_begins_without_the_last_one() -> None:
    vocabulary = local()
    vocabulary.begin([5, 6])
    vocabulary.begin([7])
    assert vocabulary.ids.tolist() == [0, 1, 7]


@given(
    most=st.integers(1, 12),
    always=st.lists(st.integers(0, 29), max_size=14),
    texts=st.lists(st.lists(st.integers(0, 29), max_size=20), max_size=12),
)
def test_it_never_outgrows_its_size_and_has_what_came_last(
    most: int, always: list[int], texts: list[list[int]]
) -> None:
    vocabulary = LocalVocabulary(size=30, most=most, always=always)
    for text in texts:
        vocabulary.add(text)
        ids = vocabulary.ids.tolist()
        assert ids == sorted(set(ids))
        assert len(ids) <= most
        assert set(sorted(set(always))[:most]) <= set(ids)
        if text and most > len(set(always)):
            assert text[-1] in ids
