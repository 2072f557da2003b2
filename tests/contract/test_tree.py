"""Trees: every branch equals the branch run alone, in any number of passes."""

import numpy as np
import pytest

from edgedecode.decoding.model import LanguageModel
from tests.contract.reference import assert_close, assert_moved, logits_of, settled
from tests.toys import path_to

PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
PROMPT = 20


@pytest.fixture(autouse=True)
def needs_trees(model: LanguageModel) -> None:
    if not model.card.tree:
        pytest.skip("reads chains only")


def alone(model: LanguageModel, tokens: list[int], branch: list[int]) -> np.ndarray:
    """Return the branch's rows, computed as one chain after the prompt."""
    return logits_of(model, [*tokens[:PROMPT], *branch])[PROMPT:]


def test_tree_branches_equal_the_branches_alone(model: LanguageModel, tokens: list[int]) -> None:
    state, nodes = settled(model, tokens[:PROMPT], capacity=64), tokens[30:40]
    found = model.forward(nodes, state, parents=PARENTS, rows="all").logits.copy()
    for leaf in (6, 7, 8, 9):
        path = path_to(PARENTS, leaf)
        assert_close(found[path], alone(model, tokens, [nodes[node] for node in path]))
    assert_moved(found[7], found[8])


@pytest.mark.parametrize("cuts", [[1], [3], [1, 4, 5]], ids=str)
def test_tree_in_several_passes_equals_one(model: LanguageModel, tokens: list[int], cuts: list[int]) -> None:
    nodes = tokens[30:40]
    whole = model.forward(
        nodes, settled(model, tokens[:PROMPT], capacity=64), parents=PARENTS, rows="all"
    ).logits.copy()
    state, found, start = settled(model, tokens[:PROMPT], capacity=64), [], 0
    for stop in [*cuts, 10]:
        logits = model.forward(nodes[start:stop], state, parents=PARENTS[start:stop], rows="all").logits
        found.append(logits.copy())
        start = stop
    assert_close(np.concatenate(found), whole)


def test_tree_may_start_without_a_prompt(model: LanguageModel, tokens: list[int]) -> None:
    parents = [-1, -1, *range(10)]  # two branches, rows interleaved: slots are not positions
    found = model.forward(tokens[:12], model.new_state(12), parents=parents, rows="all").logits.copy()
    assert_close(found[0::2], logits_of(model, tokens[0:12:2]))
    assert_close(found[1::2], logits_of(model, tokens[1:12:2]))


def test_tree_may_follow_a_pending_chain(model: LanguageModel, tokens: list[int]) -> None:
    state = model.new_state(64)
    model.forward(tokens[:PROMPT], state, rows="none")
    last = PROMPT - 1
    found = model.forward(tokens[30:33], state, parents=[last, last, last + 1], rows="all").logits.copy()
    assert_close(found[[0, 2]], alone(model, tokens, [tokens[30], tokens[32]]))
    assert_close(found[1], alone(model, tokens, [tokens[31]])[0])


def test_forward_without_parents_continues_the_last_row(model: LanguageModel, tokens: list[int]) -> None:
    state = settled(model, tokens[:PROMPT], capacity=64)
    model.forward(tokens[30:32], state, parents=[-1, -1])
    found = model.forward(tokens[32:35], state, rows="all").logits.copy()
    assert_close(found, alone(model, tokens, tokens[31:35])[1:])


@pytest.mark.parametrize("path", [[0, 1, 3, 8], [0, 2, 4, 9], [5, 6], [0], []], ids=str)
def test_keep_of_a_tree_settles_one_path_with_holes(model: LanguageModel, tokens: list[int], path: list[int]) -> None:
    state, nodes = settled(model, tokens[:PROMPT], capacity=64), tokens[30:40]
    model.forward(nodes, state, parents=PARENTS)
    state.keep(path)
    assert (state.length, state.pending) == (PROMPT + len(path), 0)
    found = model.forward(tokens[50:53], state, rows="all").logits.copy()
    kept = [nodes[node] for node in path]
    assert_close(found, alone(model, tokens, [*kept, *tokens[50:53]])[len(path) :])


def test_tree_with_many_branches_over_twenty_passes(model: LanguageModel, tokens: list[int]) -> None:
    branches, passes = 5, 20
    state = settled(model, tokens[:PROMPT], capacity=PROMPT + branches * passes + 1)
    draw = np.random.default_rng(0).integers(0, 61, (passes, branches))
    for step in range(passes):
        parents = [-1] * branches if step == 0 else list(range(branches * (step - 1), branches * step))
        found = model.forward([int(token) for token in draw[step]], state, parents=parents, rows="all").logits.copy()
    for branch in (0, 3):
        assert_close(found[branch], alone(model, tokens, [int(token) for token in draw[:, branch]])[-1])
    assert_moved(found[0], found[3])
    state.keep([3 + branches * step for step in range(passes)])
    after = model.forward([7], state).logits[0].copy()
    assert_close(after, alone(model, tokens, [*(int(token) for token in draw[:, 3]), 7])[-1])


@pytest.mark.parametrize(
    ("parents", "path"), [([-1, 1], None), ([-1, 2], None), ([-2, 0], None), ([-1], None), ([-1, -1], [0, 1])], ids=str
)
def test_tree_refuses_invalid_parents_and_paths(
    model: LanguageModel, tokens: list[int], parents: list[int], path: list[int] | None
) -> None:
    state = settled(model, tokens[:PROMPT], capacity=64)
    if path is None:
        with pytest.raises(ValueError, match="parent"):
            model.forward(tokens[:2], state, parents=parents)
        assert state.pending == 0
    else:
        model.forward(tokens[:2], state, parents=parents)
        with pytest.raises(ValueError, match=r"path|continue"):
            state.keep(path)
