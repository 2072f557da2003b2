"""Shapes of draft trees."""

import pytest

from edgedecode.decoding.drafts import check_parents


@pytest.mark.parametrize(
    ("parents", "length", "words"),
    [((-1,), 2, "1 parents for 2 tokens"), *((each, len(each), "has parent") for each in ((0,), (-1, 1), (-2,)))],
)
def test_check_parents_requires_a_parent_before_every_child(parents: tuple[int, ...], length: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_parents(parents, length=length)
