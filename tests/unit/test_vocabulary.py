"""Trimmed vocabularies, and the files of their token ids."""

from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import InputError, ManifestError
from edgedecode.pack.token_map import read_token_ids, write_token_ids

IDS = np.array([0, 3, 4, 300])


def test_trimmed_vocabulary_contains_its_ids_only() -> None:
    known = TrimmedVocabulary(IDS, 301)
    assert [token for token in range(-2, 310) if token in known] == IDS.tolist()
    assert len(known) == 4


@pytest.mark.parametrize("ids", [[], [3, 2], [2, 2], [-1, 2], [5, 301]], ids=str)
def test_trimmed_vocabulary_refuses_ids_that_do_not_ascend(ids: list[int]) -> None:
    with pytest.raises(InputError, match="must ascend"):
        TrimmedVocabulary(np.array(ids, np.int64), 301)


def test_token_ids_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trim.ids"
    write_token_ids(path, IDS)
    assert path.stat().st_size == 16
    assert read_token_ids(path, rows=4, vocabulary_size=301).ids.tolist() == IDS.tolist()


@pytest.mark.parametrize(("rows", "size"), [(3, 301), (5, 301), (4, 300)])
def test_read_token_ids_refuses_a_file_that_does_not_fit_the_draft(tmp_path: Path, rows: int, size: int) -> None:
    path = tmp_path / "trim.ids"
    write_token_ids(path, IDS)
    with pytest.raises(ManifestError, match="edgedecode trim"):
        read_token_ids(path, rows=rows, vocabulary_size=size)
    with pytest.raises(ManifestError, match="cannot be read"):
        read_token_ids(tmp_path / "none", rows=4, vocabulary_size=301)
