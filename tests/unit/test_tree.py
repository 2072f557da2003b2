"""Shapes of draft trees, against a direct walk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.decoding.drafts import chain, check_parents, children, depths, is_chain
from tests.toys import path_to


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, ...]:
    length = draw(st.integers(0, 24))
    return tuple(draw(st.integers(-1, index - 1)) for index in range(length))


@given(trees())
def test_depths_match_the_paths_from_the_root(parents: tuple[int, ...]) -> None:
    check_parents(parents, length=len(parents))
    for node, depth in enumerate(depths(parents)):
        path = path_to(parents, node)
        assert path[-1] == node
        assert len(path) == depth + 1
        assert [parents[step] for step in path] == [-1, *path[:-1]]
    assert path_to(parents, -1) == []


@given(trees())
def test_children_invert_parents(parents: tuple[int, ...]) -> None:
    branches = children(parents)
    assert len(branches) == len(parents) + 1
    assert sorted(node for branch in branches for node in branch) == list(range(len(parents)))
    for node, parent in enumerate(parents):
        assert node in branches[parent]
    assert all(branch == sorted(branch) for branch in branches)


@given(st.integers(0, 12))
def test_is_chain_accepts_chains(length: int) -> None:
    assert is_chain(chain(length))
    assert depths(chain(length)) == list(range(length))


def test_is_chain_refuses_a_fork() -> None:
    assert not is_chain((-1, -1))
    assert not is_chain((-1, 0, 0))


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 0, 5)])
def test_check_parents_requires_a_parent_before_its_child(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="has parent"):
        check_parents(parents, length=len(parents))


def test_check_parents_requires_a_parent_for_every_token() -> None:
    with pytest.raises(ValueError, match="1 parents for 2 tokens"):
        check_parents((-1,), length=2)
