"""The tree drafter: most likely tokens in the plan's shape, one pass per level, and the KV state after a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import Plan
from edgedecode.decoding.tree import TreeShape
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.drafters.model_drafter import ModelDrafter, ModelSource
from edgedecode.drafters.model_state import ModelState
from edgedecode.drafters.ranking import RANKED
from edgedecode.drafters.source import DrafterSource, DraftSetting
from edgedecode.drafters.tree_drafter import TreeDrafter, TreeSource
from edgedecode.errors import CapabilityError
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel
from tests.toys import GREEDY, draft_setting, run, toy_model

VOCABULARY = 20
NOISE = Noise(0)
CONTEXT = [1, 2, 3, 4]
COMB = TreeShape((-1, 0, -1, 1, 0, 2), (0, 0, 1, 0, 1, 0))
"""Two children of the root, two below the first, one below the second, and one on a third level."""


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


def test_tree_nodes_are_the_guesses_of_their_ranks() -> None:
    model = toy_model(VOCABULARY, seed=2)
    draft = opened(model).propose(CONTEXT, 16, NOISE, Plan(6, shape=COMB))
    assert draft.parents == COMB.parents
    assert draft.source == "tree"
    for path, rank in zip(paths(draft), COMB.ranks, strict=True):
        assert path[-1] == ranked(model, [*CONTEXT, *path[:-1]], rank)


def test_tree_takes_one_pass_per_level_over_nodes_with_children() -> None:
    model = toy_model(VOCABULARY, seed=2)
    opened(model).propose(CONTEXT, 16, NOISE, Plan(6, shape=COMB))
    assert model.passes == [4, 2, 1]
    assert model.rows_made == 4


def test_tree_ranks_follow_a_repetition_penalty() -> None:
    penalised = SamplingOptions(repetition_penalty=5.0)
    model = toy_model(VOCABULARY, seed=2)
    context = [ranked(model, CONTEXT, 0), *CONTEXT]
    plain, drafter = opened(model), opened(model, sampling=penalised)
    for each in (plain, drafter):
        each.begin(context)
    shape = Plan(1, shape=TreeShape((-1, -1), (0, 1)))
    best = [ranked(model, context, rank) for rank in (0, 1)]
    assert list(plain.propose(context, 4, NOISE, shape).tokens) == best
    logits = model.logits_after(context)[:VOCABULARY].copy()
    seen = [*{*context}]
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / 5, logits[seen] * 5)
    assert list(drafter.propose(context, 4, NOISE, shape).tokens) == np.argsort(-logits)[:2].tolist()


def test_tree_of_sampled_tokens_uses_the_targets_noise() -> None:
    warm, noise = SamplingOptions(temperature=1.2), Noise(7)
    model = toy_model(VOCABULARY, seed=2)
    first, second, *_ = opened(model, sampling=warm, noise=noise).propose(CONTEXT, 2, NOISE).tokens
    sampler = Sampler(warm, vocabulary_size=VOCABULARY)
    row = model.logits_after(CONTEXT)
    assert first == noise.draw_at(sampler.probs(row), len(CONTEXT))
    assert second == noise.draw_at(sampler.probs(model.logits_after([*CONTEXT, first])), len(CONTEXT) + 1)
    without = row.copy()
    without[first] = -np.inf
    pair = opened(model, sampling=warm, noise=noise).propose(
        CONTEXT, 2, NOISE, Plan(2, shape=TreeShape((-1, -1), (0, 1)))
    )
    assert pair.tokens == (first, noise.draw_at(sampler.probs(without), len(CONTEXT)))


def test_tree_keeps_the_state_of_accepted_tokens() -> None:
    model = toy_model(VOCABULARY, seed=2)
    drafter = opened(model)
    draft = drafter.propose(CONTEXT, 16, NOISE, Plan(6, shape=COMB))
    emitted = [*paths(draft)[5], 9]  # the second child of the root, its child, and the target's own token
    context = [*CONTEXT, *emitted]
    drafter.observe(context, verdict_of(draft, emitted))
    assert drafter.unread(context) == 2  # the last drafted token was a leaf: no pass has read it
    model.passes.clear()
    again = drafter.propose(context, 16, NOISE, Plan(6, shape=COMB))
    assert model.passes[0] == 2
    fresh = opened(toy_model(VOCABULARY, seed=2))
    fresh.begin(context)
    assert again == fresh.propose(context, 16, NOISE, Plan(6, shape=COMB))


@pytest.mark.parametrize("observed", [True, False])
def test_tree_rolls_back_a_draft_that_was_wrong_or_never_verified(observed: bool) -> None:
    model = toy_model(VOCABULARY, seed=2)
    drafter = opened(model)
    draft = drafter.propose(CONTEXT, 16, NOISE, Plan(6, shape=COMB))
    wrong = ranked(model, CONTEXT, 5)
    context = [*CONTEXT, wrong]
    if observed:
        drafter.observe(context, verdict_of(draft, [wrong]))
    else:
        drafter.begin(context)
    assert drafter.unread(context) == 1
    fresh = opened(toy_model(VOCABULARY, seed=2))
    fresh.begin(context)
    comb = Plan(6, shape=COMB)
    assert drafter.propose(context, 8, NOISE, comb) == fresh.propose(context, 8, NOISE, comb)


def test_tree_learns_which_rank_is_right() -> None:
    model = toy_model(VOCABULARY, seed=2)
    drafter = opened(model)
    context = list(CONTEXT)
    for _ in range(40):
        draft = drafter.propose(context, 4, NOISE)
        emitted = [ranked(model, context, 1), 7]
        context += emitted
        drafter.observe(context, verdict_of(draft, emitted))
    rates = drafter.rates()
    assert rates[0][1] > 0.8 > 0.2 > rates[0][0]
    assert drafter.propose(context, 1, NOISE).tokens == (ranked(model, context, 1),)


def test_tree_stops_at_end_tokens_and_drafts_chains_for_chain_shapes() -> None:
    model = toy_model(VOCABULARY, seed=2)
    ends = frozenset({ranked(model, CONTEXT, 0)})
    draft = opened(model, ends=ends).propose(CONTEXT, 16, NOISE, Plan(6, shape=COMB))
    assert draft.parents == (-1, -1, 1)
    chain = opened(model).propose(CONTEXT, 16, NOISE, Plan(3, shape=TreeShape((-1, 0, 1), (0, 0, 0))))
    assert chain.parents is None
    assert chain.tokens == ModelSource().open(draft_setting(VOCABULARY, model=model)).propose(CONTEXT, 3, NOISE).tokens


def test_tree_is_cut_to_the_limit_and_the_capacity() -> None:
    model = toy_model(VOCABULARY, seed=2)
    assert opened(model).propose(CONTEXT, 3, NOISE, Plan(6, shape=COMB)).parents == COMB.parents[:3]
    assert len(opened(model, capacity=6).propose(CONTEXT, 16, NOISE)) == 2
    assert len(opened(model, capacity=4).propose(CONTEXT, 16, NOISE)) == 0


@pytest.mark.parametrize("order", [(ModelSource, TreeSource), (TreeSource, ModelSource)])
def test_tree_shares_the_models_state_in_any_order_and_learns_from_chains(
    order: tuple[type[DrafterSource], ...],
) -> None:
    model = toy_model(VOCABULARY, seed=2)
    shared = setting(model)
    first, second = (source().open(shared) for source in order)
    chains, trees = (first, second) if order[0] is ModelSource else (second, first)
    assert isinstance(chains, ModelDrafter)
    assert isinstance(trees, TreeDrafter)
    assert first.nbytes > 0 == second.nbytes
    before = trees.rates()
    context = list(CONTEXT)
    for each in (chains, trees):
        each.begin(context)
    for _ in range(12 * RANKED):
        draft = chains.propose(context, 3, NOISE)
        emitted = [ranked(model, context, 2)]
        context += emitted
        verdict = verdict_of(draft, emitted)
        for each in (chains, trees):
            each.observe(context, verdict)
    assert trees.rates()[0][2] > 0.5 > before[0][2]
    assert trees.unread(context) == chains.unread(context)
    trees.close()
    assert chains.propose(context, 3, NOISE).tokens
    assert chains.nbytes > 0
    chains.close()
    assert shared.states.join(model, "model", lambda: ModelState(model, capacity=8)) is not chains.state


def test_tree_names_the_model_that_reads_chains_only() -> None:
    model = toy_model(VOCABULARY, seed=2)
    with pytest.raises(CapabilityError, match="target reads chains only"):
        TreeSource().open(draft_setting(VOCABULARY, model=model))
    with pytest.raises(CapabilityError, match="no draft model"):
        TreeSource().open(replace(draft_setting(VOCABULARY), tree=True))
    model.card = replace(model.card, tree=False)
    with pytest.raises(CapabilityError, match="draft model reads chains only"):
        TreeSource().open(setting(model))


def test_tree_siblings_are_accepted_and_the_text_is_the_same() -> None:
    target, draft = toy_model(VOCABULARY, seed=2), toy_model(VOCABULARY, seed=2)
    noise = np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY + 3)).astype(np.float32)
    draft._first = draft._first + 1.5 * noise
    plain = run(toy_model(VOCABULARY, seed=2), CONTEXT, max_tokens=200)
    found = run(target, CONTEXT, max_tokens=200, drafter=opened(draft), draft_max=12)
    assert found.tokens == plain.tokens
    siblings = sum(
        verdict.draft.parents is not None and verdict.draft.parents[node] in verdict.draft.parents[:node]
        for verdict in found.verdicts
        for node in verdict.path
    )
    assert siblings > 5
