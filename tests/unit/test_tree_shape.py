"""The best draft tree: best-first search against exhaustive search, and width by cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgedecode.decoding.tree import (
    MOST_NODES,
    RankRates,
    TreeShape,
    best_tree,
    check_parents,
    depths,
    fastest_tree,
    path_chances,
)

RANKS = 3


def random_rates(seed: int, *, levels: int = 3) -> RankRates:
    """Return probabilities that sum to less than one at each depth and do not always fall with the rank."""
    rng = np.random.default_rng(seed)
    return tuple(tuple(float(chance) for chance in rng.dirichlet(np.ones(RANKS + 1))[:RANKS]) for _ in range(levels))


def every_tree(nodes: int) -> Iterator[TreeShape]:
    """Yield all trees of `nodes` nodes in which siblings have different ranks, some in several orders."""

    def grown(shape: TreeShape) -> Iterator[TreeShape]:
        if len(shape) == nodes:
            yield shape
            return
        taken = set(zip(shape.parents, shape.ranks, strict=True))
        latest = (shape.parents[-1], shape.ranks[-1]) if len(shape) else (-1, -1)
        for parent in range(-1, len(shape)):
            for rank in range(RANKS):
                if (parent, rank) not in taken and (parent, rank) > latest:
                    yield from grown(TreeShape((*shape.parents, parent), (*shape.ranks, rank)))

    yield from grown(TreeShape())


def levels_of(shape: TreeShape) -> int:
    return 1 + max(depths(shape.parents), default=-1)


@pytest.mark.parametrize("seed", range(8))
def test_best_tree_equals_exhaustive_search(seed: int) -> None:
    rates = random_rates(seed)
    branched = 0
    for nodes in range(1, 6):
        for deepest in (1, 2, 5):
            trees = [shape for shape in every_tree(nodes) if levels_of(shape) <= deepest]
            if not trees:
                continue
            found = best_tree(rates, nodes=nodes, deepest=deepest)
            check_parents(found.parents, length=nodes)
            assert levels_of(found) <= deepest
            value = sum(path_chances(found, rates))
            assert value == pytest.approx(max(sum(path_chances(shape, rates)) for shape in trees))
            branched += found.branches
    assert branched > 0


@pytest.mark.parametrize("seed", range(8))
def test_fastest_tree_equals_exhaustive_search(seed: int) -> None:
    rates = random_rates(seed)
    rng = np.random.default_rng(seed)
    row, level = (float(price) for price in rng.uniform(0.0, 0.3, 2))

    def price(nodes: int, levels: int) -> float:
        return 1 + row * nodes + level * levels

    speeds = [
        (1 + sum(path_chances(shape, rates))) / price(len(shape), levels_of(shape))
        for nodes in range(6)
        for shape in every_tree(nodes)
    ]
    found = fastest_tree(rates, price=price, most=5)
    assert found.speed == pytest.approx(max(speeds))
    assert found.tokens == pytest.approx(1 + sum(path_chances(found.shape, rates)))
    assert found.speed == pytest.approx(found.tokens / price(len(found.shape), levels_of(found.shape)))


def test_best_tree_cut_short_is_the_best_smaller_tree() -> None:
    rates = random_rates(3)
    full = best_tree(rates, nodes=MOST_NODES)
    for nodes in range(MOST_NODES + 1):
        assert full.cut(nodes) == best_tree(rates, nodes=nodes)


RATES = ((0.7, 0.15, 0.05), (0.7, 0.15, 0.05))


def test_fastest_tree_is_wide_where_rows_are_free() -> None:
    found = fastest_tree(RATES, price=lambda nodes, levels: 1.0)
    assert len(found.shape) == MOST_NODES
    assert found.shape.branches
    assert {*found.shape.ranks} == {0, 1}


def test_fastest_tree_is_a_chain_or_empty_where_rows_are_expensive() -> None:
    chain = fastest_tree(RATES, price=lambda nodes, levels: 1 + 0.35 * nodes)
    assert chain.shape.parents == tuple(range(-1, len(chain.shape) - 1))
    assert {*chain.shape.ranks} == {0}
    assert len(chain.shape) > 1
    assert fastest_tree(RATES, price=lambda nodes, levels: 1 + 0.9 * nodes).shape == TreeShape()
    assert len(fastest_tree(RATES, price=lambda nodes, levels: 1 + 0.9 * nodes, least=1).shape) == 1


def test_fastest_tree_is_shallow_where_levels_are_expensive() -> None:
    deep = fastest_tree(RATES, price=lambda nodes, levels: 1 + 0.05 * nodes)
    flat = fastest_tree(RATES, price=lambda nodes, levels: 1 + 0.05 * nodes + 0.5 * levels)
    assert levels_of(flat.shape) == 1 < levels_of(deep.shape)
    assert flat.shape.ranks[:2] == (0, 1)


def test_best_tree_leaves_out_guesses_that_are_never_right() -> None:
    assert best_tree(((0.5, 0.0), (0.0, 0.0)), nodes=8) == TreeShape((-1,), (0,))
    assert best_tree(((0.0,),), nodes=8) == TreeShape()
