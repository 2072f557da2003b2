"""Shapes of draft trees."""

import pytest

from edgedecode.decoding.drafts import check_parents, children


def test_children_of_each_node_ascend_and_roots_come_last() -> None:
    assert [*children((-1, -1, 0, 1, 0))] == [[2, 4], [3], [], [], [], [0, 1]]


@pytest.mark.parametrize(
    ("parents", "length", "words"),
    [((-1,), 2, "1 parents for 2 tokens"), *((each, len(each), "has parent") for each in ((0,), (-1, 1), (-2,)))],
)
def test_check_parents_requires_a_parent_before_every_child(parents: tuple[int, ...], length: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_parents(parents, length=length)
