"""Layers with a sliding window against numpy: windows count positions in chains, pieces, trees and after a crop."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import BudgetExceeded, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from tests.contract.conftest import Opener, open_entry
from tests.contract.reference import assert_close, assert_moved, settled
from tests.contract.toy_graph import ToyShape
from tests.contract.toy_numpy import ToyNumpy

WINDOW, LENGTH = 12, 60
SHAPES = {
    "some layers": ToyShape(window=WINDOW),
    "every layer": ToyShape(window=WINDOW, all_windows=True),
    "longer than the text": ToyShape(window=LENGTH + 30),
}
TOKENS = [int(token) for token in np.random.default_rng(11).integers(0, 128, LENGTH)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
NODES = TOKENS[::-1][: len(PARENTS)]


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> ToyShape:
    return SHAPES[request.param]


@pytest.fixture(params=["auto", "engine"])
def model(
    opener: Opener, shape: ToyShape, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LanguageModel]:
    monkeypatch.setenv("EDGEDECODE_KERNELS", request.param)
    made = opener(shape)
    yield made
    made.close()


def test_window_limits_attention() -> None:
    whole = ToyNumpy(ToyShape()).logits(TOKENS)
    found = ToyNumpy(SHAPES["some layers"]).logits(TOKENS)
    np.testing.assert_array_equal(found[:WINDOW], whole[:WINDOW])
    assert_moved(found[WINDOW].astype(np.float32), whole[WINDOW].astype(np.float32))


@pytest.mark.parametrize("pieces", [[LENGTH], [1], [2], [5, 1, 17]], ids=str)
@pytest.mark.parametrize("keep", [False, True], ids=["pending", "settled"])
def test_window_on_chains(model: LanguageModel, shape: ToyShape, pieces: list[int], keep: bool) -> None:
    state, found, start = model.new_state(LENGTH), [], 0
    while start < LENGTH:
        piece = TOKENS[start : start + pieces[len(found) % len(pieces)]]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        if keep:
            state.keep(range(len(piece)))
        start += len(piece)
    assert_close(np.concatenate(found), ToyNumpy(shape).logits(TOKENS))


@pytest.mark.parametrize("prompt", [4, 20, 40])
@pytest.mark.parametrize("cuts", [[], [3], [1, 4, 5]], ids=str)
def test_window_on_trees(model: LanguageModel, shape: ToyShape, prompt: int, cuts: list[int]) -> None:
    state, found, start = settled(model, TOKENS[:prompt], capacity=LENGTH), [], 0
    for stop in [*cuts, len(NODES)]:
        output = model.forward(NODES[start:stop], state, parents=PARENTS[start:stop], rows="all")
        found.append(output.logits.copy())
        start = stop
    above = [*range(-1, prompt - 1), *(prompt - 1 if parent < 0 else prompt + parent for parent in PARENTS)]
    expected = ToyNumpy(shape).logits([*TOKENS[:prompt], *NODES], parents=above)
    assert_close(np.concatenate(found), expected[prompt:])
    state.keep([0, 2, 4])
    after = model.forward(TOKENS[:2], state, rows="all").logits.copy()
    path = [*TOKENS[:prompt], NODES[0], NODES[2], NODES[4], *TOKENS[:2]]
    assert_close(after, ToyNumpy(shape).logits(path)[-2:])


def test_window_counts_positions_in_a_long_tree_without_a_prompt(model: LanguageModel, shape: ToyShape) -> None:
    parents = [-1, -1, *range(LENGTH - 2)]  # two branches, interleaved: twice as many slots as positions
    found = model.forward(TOKENS, model.new_state(LENGTH), parents=parents, rows="all").logits.copy()
    assert_close(found, ToyNumpy(shape).logits(TOKENS, parents=parents))


@pytest.mark.parametrize("length", [0, 7, WINDOW, 33])
def test_window_crop_to_any_length(model: LanguageModel, shape: ToyShape, length: int) -> None:
    state = settled(model, TOKENS[:50], capacity=LENGTH)
    assert state.oldest_crop == 0
    state.crop(length)
    found = model.forward(TOKENS[50:], state, rows="all").logits.copy()
    assert_close(found, ToyNumpy(shape).logits([*TOKENS[:length], *TOKENS[50:]])[length:])


def test_window_with_an_int8_cache(opener: Opener) -> None:
    shape = ToyShape(window=WINDOW, graphs=("base", "kv8"))
    model = opener(shape, needs=("kv:int8",))
    found = model.forward(TOKENS, model.new_state(LENGTH), rows="all").logits.copy()
    expected, exact = ToyNumpy(shape, int8_cache=True).logits(TOKENS), ToyNumpy(shape).logits(TOKENS)
    assert np.abs(found - expected).mean() < np.abs(exact - expected).mean() / 20


def test_window_over_a_long_prompt_in_several_passes(opener: Opener) -> None:
    shape = ToyShape(window=40, context=1024)
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, 128, 700)]
    model = opener(shape)
    found = model.forward(tokens, model.new_state(700), rows=[699, 300]).logits.copy()
    assert_close(found, ToyNumpy(shape).logits(tokens)[[699, 300]])


@pytest.mark.usefixtures("engine_kernels")
def test_window_bias_is_leased_with_the_first_state_longer_than_the_window(opener: Opener) -> None:
    budget = Budget()
    model = opener(SHAPES["some layers"], budget=budget)

    def planned() -> int:
        return sum(lease.nbytes for lease in budget.leases if lease.name == "buffers:target")

    model.new_state(WINDOW)
    before = planned()
    budget.limit = Limit(budget.used_nbytes + 100_000)
    with pytest.raises(BudgetExceeded, match="the target's buffers"):
        model.new_state(WINDOW + 1)
    assert planned() == before
    budget.limit = None
    state = model.new_state(LENGTH)
    after = planned()
    assert after > before
    model.forward(TOKENS, state)
    assert planned() == after


@pytest.mark.parametrize("kernels", ["auto", "engine"])
def test_open_requires_the_manifests_window_in_the_graph(
    opener: Opener, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDECODE_KERNELS", kernels)
    window, plain, some = SHAPES["every layer"], ToyShape(), SHAPES["some layers"]
    wrong = [
        (window, 0, "no attention_bias"),
        (plain, WINDOW, "no window_bias"),
        (some, 0, "unknown input window_bias"),
    ]
    for shape, size, words in wrong:
        with pytest.raises(ManifestError, match=words):
            open_entry(replace(opener.entry(shape), window=size), opener.root(shape), budget=Budget())
