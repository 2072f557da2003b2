"""States: keep, crop and close."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from edgedecode.decoding.model import LanguageModel, State
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget
from tests.contract.conftest import sum_of
from tests.contract.reference import assert_close, logits_of, settled


@pytest.mark.parametrize("length", [0, 1, 13, 29, 30])
def test_crop_then_forward_equals_a_fresh_state(model: LanguageModel, tokens: list[int], length: int) -> None:
    state = settled(model, tokens[:30], capacity=64)
    model.forward(tokens[40:43], state, parents=[-1, -1, 0] if model.card.tree else None)
    state.crop(length)
    assert (state.length, state.pending) == (length, 0)
    tail = tokens[50:55]
    found = model.forward(tail, state, rows="all").logits.copy()
    assert_close(found, logits_of(model, [*tokens[:length], *tail])[length:])


def test_crop_accepts_any_shorter_length_and_no_longer_one(model: LanguageModel, tokens: list[int]) -> None:
    state = settled(model, tokens[:10], capacity=20)
    assert state.oldest_crop == 0
    for length in (11, -1):
        with pytest.raises(CapabilityError):
            state.crop(length)
    assert state.length == 10


def test_keep_of_a_prefix_drops_the_rest(model: LanguageModel, tokens: list[int]) -> None:
    state = settled(model, tokens[:10], capacity=30)
    model.forward(tokens[20:26], state)
    state.keep(range(2))
    assert (state.length, state.pending) == (12, 0)
    found = model.forward(tokens[30:32], state, rows="all").logits.copy()
    assert_close(found, logits_of(model, [*tokens[:10], *tokens[20:22], *tokens[30:32]])[12:])


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 1, 2, 3], [-1]], ids=str)
def test_keep_refuses_an_invalid_path(model: LanguageModel, tokens: list[int], path: list[int]) -> None:
    state = settled(model, tokens[:10], capacity=30)
    model.forward(tokens[20:23], state)
    with pytest.raises(ValueError, match=r"row|path"):
        state.keep(path)
    assert state.length == 10


def test_close_twice_is_harmless(model: LanguageModel) -> None:
    state = model.new_state(16)
    assert state.nbytes > 0
    state.close()
    state.close()


def test_close_of_a_state_while_another_thread_runs_passes_on_it(model: LanguageModel, tokens: list[int]) -> None:
    """The engine must not use memory that was released: it would crash, or overwrite the memory of others."""
    for _ in range(20):
        state, begun, over = model.new_state(64), Event(), Event()

        def passes(state: State = state, begun: Event = begun, over: Event = over) -> None:
            while not over.is_set():
                model.forward(tokens[:32], state, rows="none")
                begun.set()
                state.crop(0)

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(passes)
            assert begun.wait(60)
            state.close()
            over.set()
            error = running.exception(60)
        assert error is None or isinstance(error, CapabilityError)
    logits_of(model, tokens)


def test_state_that_is_dropped_releases_its_lease(either: Callable[..., LanguageModel]) -> None:
    budget = Budget()
    model = either(budget=budget)
    state = model.new_state(100)
    assert sum_of(budget, "kv:") == state.nbytes
    del state
    gc.collect()
    assert sum_of(budget, "kv:") == 0


def test_close_of_a_model_releases_all_memory(either: Callable[..., LanguageModel]) -> None:
    """Except the engine's code pages, which stay with the process."""
    budget = Budget()
    model = either(budget=budget)
    states = [model.new_state(50), model.new_state(60)]
    model.forward([1, 2, 3], states[0], parents=[-1, -1, 0], rows="all")
    model.close()
    model.close()
    (code,) = budget.leases
    assert code.name in ("engine code", "llama.cpp code")


def test_forward_refuses_a_state_of_another_model_or_a_closed_one(either: Callable[..., LanguageModel]) -> None:
    first, second = either(), either()
    state = first.new_state(8)
    with pytest.raises(InputError, match="new_state"):
        second.forward([1], state)
    state.close()
    with pytest.raises(CapabilityError, match="closed"):
        first.forward([1], state)
