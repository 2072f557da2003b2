"""The tree drafter: most likely tokens in the best shape, one pass per level, and the KV state after a round."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedecode.decoding.drafts import Draft, check_parents
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.drafters import tree_drafter
from edgedecode.drafters.model_drafter import ModelSource
from edgedecode.drafters.model_state import MOST_NODES
from edgedecode.drafters.source import DraftSetting
from edgedecode.drafters.tree_drafter import CHANCES, TreeDrafter, TreeShape, TreeSource, tree_shape
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel
from tests.toys import GREEDY, draft_setting, toy_model

VOCABULARY = 20
NOISE = Noise(0)
CONTEXT = [1, 2, 3, 4]
SIX = tree_shape(6)
"""A chain of four, a sibling of its first node and one of its second."""


def setting(model: TableModel, *, sampling: SamplingOptions = GREEDY, **others: object) -> DraftSetting:
    return replace(draft_setting(VOCABULARY, model=model, sampling=sampling, **others), tree=True)  # type: ignore[arg-type]


def opened(model: TableModel, **others: object) -> TreeDrafter:
    drafter = TreeSource().open(setting(model, **others))  # type: ignore[arg-type]
    assert isinstance(drafter, TreeDrafter)
    drafter.begin(CONTEXT)
    return drafter


def paths(draft: Draft) -> list[tuple[int, ...]]:
    parents = draft.parents or tuple(range(-1, len(draft) - 1))
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        found.append((*(() if parent < 0 else found[parent]), token))
    return found


def ranked(model: TableModel, tokens: Sequence[int], rank: int) -> int:
    return int(np.argsort(-model.logits_after(tokens)[:VOCABULARY], kind="stable")[rank])


def verdict_of(draft: Draft, emitted: Sequence[int]) -> Verdict:
    path = [node for node, above in enumerate(paths(draft)) if above == tuple(emitted[: len(above)])]
    rows = TargetRows(np.zeros((1, VOCABULARY), np.float32), Sampler(GREEDY, vocabulary_size=VOCABULARY))
    return Verdict(draft, tuple(emitted), tuple(sorted(path)), Outcome.CORRECTION, rows)


def every_tree(nodes: int, *, ranks: int) -> Iterator[TreeShape]:
    """Yield all trees of `nodes` nodes in which siblings have different ranks."""

    def grown(shape: TreeShape) -> Iterator[TreeShape]:
        if len(shape.parents) == nodes:
            yield shape
            return
        latest = (shape.parents[-1], shape.ranks[-1]) if shape.parents else (-1, -1)
        for parent in range(-1, len(shape.parents)):
            for rank in range(ranks):
                if (parent, rank) > latest:
                    yield from grown(TreeShape((*shape.parents, parent), (*shape.ranks, rank)))

    yield from grown(TreeShape((), ()))


def expected_tokens(shape: TreeShape, chances: Sequence[float]) -> float:
    alive: list[float] = []
    for parent, rank in zip(*shape, strict=True):
        alive.append((1.0 if parent < 0 else alive[parent]) * chances[rank])
    return sum(alive)


def test_tree_shape_equals_exhaustive_search_and_grows_from_the_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for chances in (CHANCES, (0.4, 0.3, 0.2), (0.9, 0.05)):
        monkeypatch.setattr(tree_drafter, "CHANCES", chances)
        for nodes in range(1, 6):
            best = max(expected_tokens(shape, chances) for shape in every_tree(nodes, ranks=len(chances)))
            assert expected_tokens(tree_shape.__wrapped__(nodes), chances) == pytest.approx(best)
    monkeypatch.undo()
    full = tree_shape(MOST_NODES)
    check_parents(full.parents, length=MOST_NODES)
    for nodes in range(1, MOST_NODES):
        assert tree_shape(nodes) == (full.parents[:nodes], full.ranks[:nodes])


def test_tree_nodes_are_the_guesses_of_their_ranks() -> None:
    model = toy_model(VOCABULARY, seed=2)
    draft = opened(model).propose(CONTEXT, 6, NOISE)
    assert draft.parents == SIX.parents
    assert draft.source == "tree"
    for path, rank in zip(paths(draft), SIX.ranks, strict=True):
        assert path[-1] == ranked(model, [*CONTEXT, *path[:-1]], rank)


def test_tree_takes_one_pass_per_level_over_nodes_with_children() -> None:
    model = toy_model(VOCABULARY, seed=2)
    opened(model).propose(CONTEXT, 8, NOISE)
    assert model.passes == [4, 2, 1, 1, 1]
    assert model.rows_made == 6


def test_tree_of_sampled_tokens_uses_the_targets_noise() -> None:
    warm, noise = SamplingOptions(temperature=1.2), Noise(7)
    model = toy_model(VOCABULARY, seed=2)
    first, second, _, sibling, *_ = opened(model, sampling=warm, noise=noise).propose(CONTEXT, 4, NOISE).tokens
    sampler = Sampler(warm, vocabulary_size=VOCABULARY)
    row = model.logits_after(CONTEXT)
    assert first == noise.draw_at(sampler.probs(row), len(CONTEXT))
    assert second == noise.draw_at(sampler.probs(model.logits_after([*CONTEXT, first])), len(CONTEXT) + 1)
    without = row.copy()
    without[first] = -np.inf
    assert sibling == noise.draw_at(sampler.probs(without), len(CONTEXT))


def test_tree_keeps_the_state_of_accepted_tokens() -> None:
    model = toy_model(VOCABULARY, seed=2)
    drafter = opened(model)
    draft = drafter.propose(CONTEXT, 6, NOISE)
    emitted = [*paths(draft)[5], 9]  # the second child of the first node, and the target's own token
    context = [*CONTEXT, *emitted]
    drafter.observe(context, verdict_of(draft, emitted))
    assert drafter.unread(context) == 2  # the last drafted token was a leaf: no pass has read it
    model.passes.clear()
    again = drafter.propose(context, 6, NOISE)
    assert model.passes[0] == 2
    fresh = opened(toy_model(VOCABULARY, seed=2))
    fresh.begin(context)
    assert again == fresh.propose(context, 6, NOISE)


@pytest.mark.parametrize("observed", [True, False])
def test_tree_rolls_back_a_draft_that_was_wrong_or_never_verified(observed: bool) -> None:
    model = toy_model(VOCABULARY, seed=2)
    drafter = opened(model)
    draft = drafter.propose(CONTEXT, 6, NOISE)
    wrong = ranked(model, CONTEXT, 5)
    context = [*CONTEXT, wrong]
    if observed:
        drafter.observe(context, verdict_of(draft, [wrong]))
    else:
        drafter.begin(context)
    assert drafter.unread(context) == 1
    fresh = opened(toy_model(VOCABULARY, seed=2))
    fresh.begin(context)
    assert drafter.propose(context, 8, NOISE) == fresh.propose(context, 8, NOISE)


def test_tree_stops_at_end_tokens_and_is_a_chain_where_that_is_the_best_shape() -> None:
    model = toy_model(VOCABULARY, seed=2)
    ends = frozenset({ranked(model, CONTEXT, 0)})
    assert opened(model, ends=ends).propose(CONTEXT, 8, NOISE).parents == (-1, -1, 1)
    chain = opened(model).propose(CONTEXT, 3, NOISE)
    assert chain.parents is None
    assert chain.tokens == ModelSource().open(draft_setting(VOCABULARY, model=model)).propose(CONTEXT, 3, NOISE).tokens


def test_tree_is_cut_to_its_largest_size_and_the_capacity() -> None:
    model = toy_model(VOCABULARY, seed=2)
    assert opened(model).propose(CONTEXT, 64, NOISE).parents == tree_shape(MOST_NODES).parents
    assert len(opened(model, capacity=6).propose(CONTEXT, 16, NOISE)) == 2
    assert len(opened(model, capacity=4).propose(CONTEXT, 16, NOISE)) == 0
