"""ONNX Runtime's model: split passes, the shared KV cache, interrupted passes."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from tests.contract.conftest import Opener
from tests.contract.reference import assert_close, logits_of, settled
from tests.contract.toy_graph import ToyShape

LONG = 500


class Spy:
    """Wrap the engine's session: count passes and fail at a given one."""

    def __init__(self, session: Any, *, fail_at: int = 0, error: BaseException | None = None) -> None:
        self.session, self.fail_at, self.error, self.passes = session, fail_at, error, 0

    def run_with_iobinding(self, binding: Any) -> None:
        self.session.run_with_iobinding(binding)
        self.passes += 1
        if self.passes == self.fail_at and self.error is not None:
            raise self.error

    def io_binding(self) -> Any:
        return self.session.io_binding()


@pytest.fixture
def long_tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(0, 128, LONG)]


def spy_on(model: Any, **options: Any) -> Spy:
    model._session = Spy(model._session, **options)
    return model._session  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", ["last", "none", "all", [3, 255, 256, 499], [499, 0, 300]], ids=str)
def test_forward_splits_a_long_pass_and_equals_short_ones(
    opener: Opener, long_tokens: list[int], rows: str | list[int]
) -> None:
    model = opener()
    state = model.new_state(LONG)
    whole = np.concatenate([model.forward([token], state).logits.copy() for token in long_tokens])
    state.crop(0)
    spy = spy_on(model)
    found = model.forward(long_tokens, state, rows=rows).logits  # type: ignore[arg-type]
    wanted = {"last": [LONG - 1], "none": [], "all": range(LONG)}.get(rows) if isinstance(rows, str) else rows
    assert wanted is not None
    assert_close(found, whole[list(wanted)])
    assert spy.passes == 2
    assert state.pending == LONG


def test_forward_splits_into_no_pass_of_one_row(opener: Opener, long_tokens: list[int]) -> None:
    model = opener()
    widths: list[int] = []
    run = model._pass  # type: ignore[attr-defined]
    model._pass = lambda state, tokens, **rest: (widths.append(len(tokens)), run(state, tokens, **rest))  # type: ignore[attr-defined]
    model.forward(long_tokens[:257], model.new_state(LONG), rows="none")
    assert widths == [255, 2]


@pytest.mark.usefixtures("engine_kernels")
def test_forward_splits_a_long_tree_pass(opener: Opener, long_tokens: list[int]) -> None:
    model = opener()
    parents = [-1, -1, *range(LONG - 2)]  # two branches, interleaved
    state = model.new_state(LONG)
    spy = spy_on(model)
    found = model.forward(long_tokens, state, parents=parents, rows=[LONG - 1]).logits[0].copy()
    assert spy.passes == 3  # the first row alone: a tree without a prefix
    assert_close(found, logits_of(model, long_tokens[1::2])[-1])


def test_new_state_in_another_thread_waits_for_the_pass(opener: Opener) -> None:
    """Its larger number of rows moves the logits buffer that the pass writes to."""
    model: Any = opener()
    state, session, made = settled(model, [1, 2, 3], capacity=20), model._session, []

    class Crossed(Spy):
        def run_with_iobinding(self, binding: Any) -> None:
            place = model._buffers.logits_pointer
            other.start()
            other.join(0.5)
            assert (other.is_alive(), model._buffers.logits_pointer) == (True, place)
            super().run_with_iobinding(binding)

    other = Thread(target=lambda: made.append(model.new_state(20, rows=200)))
    model._session = Crossed(session)
    model.forward([4, 5], state, rows="all")
    model._session = session
    other.join(60)
    assert_close(model.forward([1, 2], made[0], rows="all").logits.copy(), logits_of(model, [1, 2]))


@pytest.mark.usefixtures("engine_kernels")
def test_state_keeps_past_and_present_in_one_array(opener: Opener, long_tokens: list[int]) -> None:
    model = opener()
    state: Any = settled(model, long_tokens[:10], capacity=32)
    outputs = {value.data_ptr() for value in state.binding.get_outputs()}
    assert {layer.ctypes.data for layer in state.cache.array} <= outputs
    assert np.abs(state.cache.array[:, :, :, :10]).min(axis=(2, 4)).max() > 0
    assert not state.cache.array[:, :, :, 10:].any()


@pytest.mark.parametrize("fail_at", [1, 2])
def test_forward_that_is_interrupted_leaves_the_state_unchanged(
    opener: Opener, long_tokens: list[int], fail_at: int
) -> None:
    model: Any = opener()
    state = settled(model, long_tokens[:20], capacity=LONG)
    model.forward(long_tokens[20:23], state, parents=[-1, -1, 0])
    session, spy = model._session, spy_on(model, fail_at=fail_at, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        model.forward(long_tokens[:400], state, parents=[0, *range(3, 402)], rows="none")
    assert spy.passes == fail_at
    model._session = session
    assert (state.length, state.pending) == (20, 3)
    found = model.forward(long_tokens[40:42], state, parents=[1, 2], rows="all").logits.copy()
    assert_close(found[0], logits_of(model, [*long_tokens[:20], long_tokens[21], long_tokens[40]])[-1])
    state.keep([0, 2, 4])
    after = model.forward(long_tokens[50:51], state).logits[0].copy()
    path = [long_tokens[20], long_tokens[22], long_tokens[41], long_tokens[50]]
    assert_close(after, logits_of(model, [*long_tokens[:20], *path])[-1])


def test_forward_that_fails_is_a_one_line_error(opener: Opener, long_tokens: list[int]) -> None:
    model: Any = opener()
    state = settled(model, long_tokens[:5], capacity=20)
    session = model._session
    spy_on(model, fail_at=1, error=RuntimeError("kernel says no\nstack\nstack"))
    with pytest.raises(RuntimeUnavailable, match=r"pass of 2 rows: kernel says no$"):
        model.forward(long_tokens[:2], state)
    assert state.pending == 0
    model._session = session


@pytest.mark.parametrize("rows", [[2], [-1], [0, 0, 1]], ids=str)
def test_forward_refuses_rows_outside_the_pass(opener: Opener, rows: list[int]) -> None:
    model = opener()
    with pytest.raises(InputError, match="rows"):
        model.forward([1, 2], model.new_state(8), rows=rows)


def test_forward_on_a_graph_without_tree_runs_chains(opener: Opener) -> None:
    model: LanguageModel = opener(ToyShape(tree=False))
    state = model.new_state(8)
    model.forward([1, 2], state, parents=[-1, 0])
    with pytest.raises(CapabilityError, match="tree"):
        model.forward([3, 4], state, parents=[-1, -1])
    assert state.pending == 2
    assert_close(model.forward([3], state).logits.copy(), logits_of(model, [1, 2, 3])[2:])
