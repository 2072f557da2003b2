"""llama.cpp's model: split passes, branches, KV types, and inputs that would make the engine abort."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from tests.contract.conftest import GgufOpener, open_gguf
from tests.contract.reference import assert_close, logits_of, settled
from tests.contract.toy_graph import ToyShape

LONG = 500
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 128, LONG)]


@pytest.fixture
def model(gguf_opener: GgufOpener) -> Any:
    return gguf_opener()


class Spy:
    """Wrap the engine's functions: count passes and fail after a given one."""

    def __init__(self, api: Any, *, fail_at: int = 0, error: BaseException | int = 0) -> None:
        self.api, self.fail_at, self.error, self.passes = api, fail_at, error, 0
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def llama_decode(self, context: Any, batch: Any) -> int:
        status: int = self.api.llama_decode(context, batch)
        self.passes += 1
        self.rows.append(batch.n_tokens)
        if self.passes == self.fail_at:
            if isinstance(self.error, BaseException):
                raise self.error
            return self.error
        return status


def spy_on(state: Any, **options: Any) -> Spy:
    state.context._api = Spy(state.context._api, **options)
    return state.context._api  # type: ignore[no-any-return]


# -- correct values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_forward_equals_numpy(gguf_opener: GgufOpener, architecture: str) -> None:
    toy_numpy = pytest.importorskip("tests.contract.toy_numpy")
    model = gguf_opener(architecture=architecture)
    parents = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
    state = settled(model, TOKENS[:20], capacity=64)
    found = model.forward(TOKENS[30:40], state, parents=parents, rows="all").logits
    above = [*range(-1, 19), *(19 if parent < 0 else 20 + parent for parent in parents)]
    wanted = toy_numpy.ToyNumpy(ToyShape()).logits([*TOKENS[:20], *TOKENS[30:40]], parents=above)
    np.testing.assert_allclose(found, wanted[20:], rtol=0, atol=1e-5)


def test_forward_on_both_engines_agrees(gguf_opener: GgufOpener, opener: Any) -> None:
    ours, other = gguf_opener(), opener()
    assert_close(logits_of(ours, TOKENS[:100]), logits_of(other, TOKENS[:100]))


@pytest.mark.parametrize(("kv_type", "bound"), [("float32", 1e-5), ("float16", 0.02), ("int8", 0.2)])
def test_forward_with_each_kv_type(gguf_opener: GgufOpener, kv_type: str, bound: float) -> None:
    shape = ToyShape(head_size=32)
    exact = gguf_opener(shape, architecture="llama")
    model = gguf_opener(shape, architecture="llama", needs=("tree", f"kv:{kv_type}"))
    assert model.card.kv_type == kv_type
    difference = np.abs(logits_of(model, TOKENS[:64]) - logits_of(exact, TOKENS[:64])).max()
    assert (difference > 0) == (kv_type != "float32")
    assert difference < bound
    state = settled(model, TOKENS[:20], capacity=64)
    model.forward(TOKENS[30:33], state, parents=[-1, -1, 1])
    state.keep([1, 2])
    after = model.forward([5], state).logits[0].copy()
    wanted = logits_of(model, [*TOKENS[:20], *TOKENS[31:33], 5])[-1]
    np.testing.assert_allclose(after, wanted, rtol=0, atol=bound)


def test_kv_type_of_quantized_weights_is_half_precision(gguf_opener: GgufOpener) -> None:
    entry = replace(gguf_opener.entry(ToyShape()), bits=4)
    model = open_gguf(entry, gguf_opener.root(ToyShape()), budget=Budget())
    assert model.card.kv_type == "float16"


# -- passes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", ["last", "none", "all", [3, 127, 128, 499], [499, 0, 300, 0], range(5, -1, -1)], ids=str
)
def test_forward_splits_a_long_pass_and_equals_short_ones(model: Any, rows: Any) -> None:
    state = model.new_state(LONG)
    whole = np.concatenate([model.forward([token], state).logits.copy() for token in TOKENS])
    state.crop(0)
    spy = spy_on(state)
    found = model.forward(TOKENS, state, rows=rows).logits
    wanted = {"last": [LONG - 1], "none": [], "all": range(LONG)}.get(rows) if isinstance(rows, str) else rows
    assert wanted is not None
    assert_close(found, whole[list(wanted)])
    assert max(spy.rows) <= state.context.plan.rows_per_pass
    assert spy.passes == (-(-LONG // 8) if rows == "all" else 4)
    assert state.pending == LONG


def test_forward_returns_planned_rows_of_one_pass_without_a_copy(model: Any) -> None:
    state = model.new_state(64, rows=40)
    spy = spy_on(state)
    model.forward(TOKENS[:40], state, rows="all")
    assert spy.rows == [40]
    assert model._gathered.size == 0


def test_forward_splits_a_long_tree_pass(model: Any) -> None:
    parents = [-1, -1, *range(LONG - 2)]  # two branches, interleaved
    found = model.forward(TOKENS, model.new_state(LONG), parents=parents, rows=[LONG - 1, 0]).logits.copy()
    assert_close(found, np.stack([logits_of(model, TOKENS[1::2])[-1], logits_of(model, TOKENS[:1])[0]]))


def test_tree_over_several_passes_equals_its_branches(model: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(25):
        count, prompt = int(rng.integers(2, 24)), int(rng.integers(0, 30))
        parents = [int(rng.integers(max(-1, node - 4), node)) for node in range(count)]
        nodes = [int(token) for token in rng.integers(0, 128, count)]
        state = model.new_state(64, rows=24)
        if prompt:
            model.forward(TOKENS[:prompt], state, rows="none")
            state.keep(range(prompt))
        cuts = sorted({0, count, *(int(cut) for cut in rng.integers(0, count, 2))})
        found = np.concatenate(
            [
                model.forward(nodes[start:stop], state, parents=parents[start:stop], rows="all").logits.copy()
                for start, stop in pairwise(cuts)
            ]
        )
        leaf = int(rng.integers(0, count))
        path: list[int] = []
        while leaf >= 0:
            path.insert(0, leaf)
            leaf = parents[leaf]
        text = [*TOKENS[:prompt], *(nodes[node] for node in path)]
        assert_close(found[path], logits_of(model, text)[prompt:])
        state.keep(path)
        after = model.forward(TOKENS[50:53], state, parents=[-1, -1, 1], rows="all").logits.copy()
        assert_close(after[2], logits_of(model, [*text, TOKENS[51], TOKENS[52]])[-1])
        state.close()


def test_tree_rounds_reuse_dropped_cells(model: Any) -> None:
    """200 rounds in a nearly full cache: cells of dropped rows are used again."""
    rng, text = np.random.default_rng(4), TOKENS[:10]
    state = settled(model, text, capacity=256)
    for _ in range(110):
        nodes = [int(token) for token in rng.integers(0, 128, 4)]
        found = model.forward(nodes, state, parents=[-1, -1, 0, 1], rows=[3]).logits[0].copy()
        state.keep([1, 3])
        text = [*text, nodes[1], nodes[3]]
    assert state.length == len(text) == 230
    assert_close(found, logits_of(model, text)[-1])
    state.crop(100)
    assert_close(model.forward([5], state).logits[0].copy(), logits_of(model, [*text[:100], 5])[-1])


@pytest.mark.parametrize(("architecture", "window", "bound"), [("qwen2", 0, 1e-4), ("gemma2", 12, 5e-3)], ids=str)
def test_state_over_many_operations_equals_a_fresh_one(
    gguf_opener: GgufOpener, architecture: str, window: int, bound: float
) -> None:
    """Trees, chains, crops, kept branches and failed passes in any order: settled tokens equal a fresh state's."""
    model: Any = gguf_opener(ToyShape(window=window), architecture=architecture)
    rng, text, checked = np.random.default_rng(8), list(TOKENS[:5]), 0
    state = settled(model, text, capacity=256)
    for _ in range(150):
        parents, nodes = grow_tree(model, state, rng)
        if rng.random() < 0.2:
            state.context._api, api = Spy(state.context._api, fail_at=1, error=-2), state.context._api
            with pytest.raises(RuntimeUnavailable):
                model.forward([1, 2], state, parents=[-1, -1], rows="none")
            state.context._api = api
        path: list[int] = []
        leaf = int(rng.integers(-1, len(nodes)))
        while leaf >= 0:
            path.insert(0, leaf)
            leaf = parents[leaf]
        state.keep(path)
        text += [nodes[node] for node in path]
        if rng.random() < 0.15 or len(text) > 225:
            length = int(rng.integers(min(len(text), state.oldest_crop), len(text) + 1)) // 2 * 2
            if length >= state.oldest_crop or length == 0:
                state.crop(length)
                del text[length:]
        assert state.length == len(text)
        found = model.forward([9], state).logits[0].copy()
        np.testing.assert_allclose(found, logits_of(model, [*text, 9])[-1], rtol=0, atol=bound)
        state.crop(len(text))
        checked += len(path)
    assert checked > 100


def grow_tree(model: Any, state: Any, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Append a random tree in one to three passes; return its parents and tokens."""
    parents: list[int] = []
    nodes: list[int] = []
    for _ in range(int(rng.integers(1, 4))):
        start, count = len(nodes), int(rng.integers(1, 5))
        chain = rng.random() < 0.3
        parents += [
            node - 1 if chain else int(rng.integers(max(-1, node - 2), node)) for node in range(start, start + count)
        ]
        nodes += [int(token) for token in rng.integers(0, 128, count)]
        try:
            model.forward(nodes[start:], state, parents=parents[start:], rows="none")
        except CapabilityError:  # more branches than the state has: nothing was appended
            del parents[start:], nodes[start:]
    return parents, nodes


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_at", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), 1, -2], ids=["interrupt", "no room", "failure"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_forward_that_is_interrupted_leaves_the_state_unchanged(
    model: Any, fail_at: int, error: Any, tree: bool
) -> None:
    state = settled(model, TOKENS[:20], capacity=LONG)
    model.forward(TOKENS[20:23], state, parents=[-1, -1, 0] if tree else None)
    spy = spy_on(state, fail_at=fail_at, error=error)
    parents = [0, *range(3, 302)] if tree else None
    with pytest.raises(KeyboardInterrupt if isinstance(error, BaseException) else RuntimeUnavailable):
        model.forward(TOKENS[:300], state, parents=parents, rows="none")
    assert spy.passes == fail_at
    assert (state.length, state.pending) == (20, 3)
    found = model.forward(TOKENS[40:42], state, parents=[1, 2], rows="all").logits.copy()
    above = TOKENS[21:22] if tree else TOKENS[20:22]
    assert_close(found[0], logits_of(model, [*TOKENS[:20], *above, TOKENS[40]])[-1])
    state.keep([0, 2, 4] if tree else [0, 1, 2, 4])
    after = model.forward(TOKENS[50:51], state).logits[0].copy()
    path = [TOKENS[20], TOKENS[22]] if tree else TOKENS[20:23]
    assert_close(after, logits_of(model, [*TOKENS[:20], *path, TOKENS[41], TOKENS[50]])[-1])


def test_forward_refuses_too_many_branches_and_changes_nothing(model: Any) -> None:
    state = settled(model, TOKENS[:20], capacity=64)
    model.forward(TOKENS[20:22], state, parents=[-1, -1])
    with pytest.raises(CapabilityError, match="more than 8 branches"):
        model.forward(TOKENS[:7], state, parents=[-1] * 7)
    assert state.pending == 2
    found = model.forward(TOKENS[40:41], state, parents=[0]).logits[0].copy()
    assert_close(found, logits_of(model, [*TOKENS[:21], TOKENS[40]])[-1])
    wide = settled_wide(model, branches=100)
    found = model.forward(TOKENS[:100], wide, parents=[-1] * 100, rows="all").logits.copy()
    assert_close(found[99], logits_of(model, [*TOKENS[:20], TOKENS[99]])[-1])


def settled_wide(model: Any, *, branches: int) -> Any:
    state = model.new_state(200, rows=branches)
    model.forward(TOKENS[:20], state, rows="none")
    state.keep(range(20))
    return state


def test_logits_view_outlives_its_state(model: Any) -> None:
    state = model.new_state(64)
    view = model.forward(TOKENS[:5], state).logits
    kept = view.copy()
    del state
    np.testing.assert_array_equal(view, kept)


ABORTS: dict[str, tuple[Callable[[Any, Any], object], type[Exception]]] = {
    "no tokens": (lambda model, state: model.forward([], state), InputError),
    "a negative token": (lambda model, state: model.forward([-1], state), InputError),
    "a token above the rows": (lambda model, state: model.forward([128], state), InputError),
    "a row out of range": (lambda model, state: model.forward([1], state, rows=[1]), InputError),
    "more outputs than rows": (lambda model, state: model.forward([1], state, rows=[0, 0]), InputError),
    "a cycle": (lambda model, state: model.forward([1, 2], state, parents=[-1, 1]), InputError),
    "too few parents": (lambda model, state: model.forward([1, 2], state, parents=[-1]), InputError),
    "more rows than cells": (lambda model, state: model.forward([1] * 61, state), CapabilityError),
    "more branches than sequences": (
        lambda model, state: model.forward([1] * 9, state, parents=[-1] * 9),
        CapabilityError,
    ),
    "a position ahead": (lambda model, state: state.crop(9), CapabilityError),
    "a negative position": (lambda model, state: state.crop(-1), CapabilityError),
    "a path without pending rows": (lambda model, state: state.keep([0]), InputError),
    "no cells": (lambda model, state: model.new_state(0), InputError),
    "no outputs": (lambda model, state: model.new_state(8, rows=-1), InputError),
    "more cells than the context": (lambda model, state: model.new_state(513), CapabilityError),
    "a closed state": (lambda model, state: (state.close(), model.forward([1], state)), CapabilityError),
    "a closed model": (lambda model, state: (model.close(), model.forward([1], state)), CapabilityError),
    "a state of a closed model": (lambda model, state: (model.close(), model.new_state(8)), CapabilityError),
}


@pytest.mark.parametrize("case", ABORTS)
def test_calls_that_the_engine_asserts_are_refused_first(gguf_opener: GgufOpener, case: str) -> None:
    """Each of these aborts, corrupts memory or fails inside the engine if it is reached."""
    model: Any = gguf_opener()
    state = settled(model, TOKENS[:4], capacity=64)
    spy = spy_on(state)
    call, error = ABORTS[case]
    with pytest.raises(error):
        call(model, state)
    assert spy.passes == 0


@pytest.mark.parametrize(("capacity", "rows"), [(1, 1), (1, 500), (255, 1), (257, 500), (512, 128)])
def test_new_state_of_any_size_makes_a_context(model: Any, capacity: int, rows: int) -> None:
    """The engine aborts with fewer outputs than sequences, or with a number of cells that it does not support."""
    state = model.new_state(capacity, rows=rows)
    count = min(capacity, rows)
    assert model.forward(TOKENS[:count], state, rows="all").logits.shape == (count, 128)
    model.forward(TOKENS[: capacity - count] or [1], state) if capacity > count else None
    state.close()
