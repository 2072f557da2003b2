"""Memories that cannot go back everywhere: layers with a sliding window, and recurrent ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgedecode.errors import CapabilityError
from edgedecode.types import FloatArray
from tests.contract.conftest import GgufOpener
from tests.contract.reference import assert_close, assert_moved, logits_of, settled
from tests.contract.toy_graph import ToyShape

TOKENS = [int(token) for token in np.random.default_rng(11).integers(0, 128, 200)]
WINDOW = ToyShape(window=12)
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]


def assert_near(found: FloatArray, wanted: FloatArray) -> None:
    """The window toy's activation is looked up in a half-precision table: rounding jumps by up to a thousandth."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-3)


@pytest.fixture
def window(gguf_opener: GgufOpener) -> Iterator[Any]:
    made = gguf_opener(WINDOW, architecture="gemma2")
    yield made
    made.close()


@pytest.fixture
def recurrent(gguf_opener: GgufOpener) -> Iterator[Any]:
    made = gguf_opener(architecture="mamba")
    yield made
    made.close()


def test_the_window_matters(window: Any, gguf_opener: GgufOpener) -> None:
    wide = gguf_opener(ToyShape(window=400), architecture="gemma2")
    found, whole = logits_of(window, TOKENS[:60]), logits_of(wide, TOKENS[:60])
    assert_near(found[:12], whole[:12])
    assert_moved(found[20], whole[20])
    wide.close()


@pytest.mark.parametrize("pieces", [[60], [1], [2], [5, 1, 17]], ids=str)
def test_window_chains(window: Any, pieces: list[int]) -> None:
    state, found, start = window.new_state(60), [], 0
    while start < 60:
        piece = TOKENS[start : min(60, start + pieces[len(found) % len(pieces)])]
        found.append(window.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
        start += len(piece)
    assert_near(np.concatenate(found), logits_of(window, TOKENS[:60]))


@pytest.mark.parametrize("prompt", [4, 20, 40])
@pytest.mark.parametrize("cuts", [[], [3], [1, 4, 5]], ids=str)
def test_window_trees(window: Any, prompt: int, cuts: list[int]) -> None:
    nodes = TOKENS[100:110]
    state, found, start = settled(window, TOKENS[:prompt], capacity=64), [], 0
    for stop in [*cuts, 10]:
        found.append(window.forward(nodes[start:stop], state, parents=PARENTS[start:stop], rows="all").logits.copy())
        start = stop
    path = [0, 2, 4, 9]
    text = [*TOKENS[:prompt], *(nodes[node] for node in path)]
    assert_near(np.concatenate(found)[path], logits_of(window, text)[prompt:])
    state.keep(path[:3])
    after = window.forward(TOKENS[:2], state, rows="all").logits.copy()
    assert_near(after, logits_of(window, [*text[:-1], *TOKENS[:2]])[-2:])


@pytest.mark.parametrize("length", [0, 7, 12, 33])
def test_window_crops_within_what_is_left(window: Any, length: int) -> None:
    state = settled(window, TOKENS[:50], capacity=64)
    assert state.oldest_crop == 0
    state.crop(length)
    found = window.forward(TOKENS[50:55], state, rows="all").logits.copy()
    assert_near(found, logits_of(window, [*TOKENS[:length], *TOKENS[50:55]])[length:])


def test_window_rounds_in_a_full_cache(window: Any) -> None:
    """Cells outside the window may be given away: what can no longer be gone back to is refused, not wrong."""
    rng, text = np.random.default_rng(4), TOKENS[:10]
    state = settled(window, text, capacity=256)
    for _ in range(110):
        nodes = [int(token) for token in rng.integers(0, 128, 5)]
        found = window.forward(nodes, state, parents=[-1, -1, 0, 1, 3], rows=[3]).logits[0].copy()
        state.keep([1, 3])
        text = [*text, nodes[1], nodes[3]]
    assert_near(found, logits_of(window, text)[-1])
    oldest = state.oldest_crop
    assert oldest <= len(text)
    for length in {oldest, max(0, oldest - 1)}:
        if 0 < length < oldest:
            with pytest.raises(CapabilityError, match="cannot go back"):
                state.crop(length)
        else:
            state.crop(length)
            after = window.forward([5], state).logits[0].copy()
            assert_near(after, logits_of(window, [*text[:length], 5])[-1])
    state.crop(0)
    assert_near(window.forward(TOKENS[:30], state, rows="all").logits.copy(), logits_of(window, TOKENS[:30]))


def test_what_a_window_gave_away_is_not_gone_back_to(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = settled(window, TOKENS[:50], capacity=64)
    monkeypatch.setattr(type(state.context), "first_position", lambda context: 20)
    assert state.oldest_crop == 32
    with pytest.raises(CapabilityError, match="to length 31, only to 32 or 0"):
        state.crop(31)
    state.crop(32)
    assert state.length == 32
    state.crop(0)


@pytest.mark.parametrize("pieces", [[64], [1], [7, 1, 3]], ids=str)
def test_recurrent_chains(recurrent: Any, pieces: list[int]) -> None:
    state, found, start = recurrent.new_state(64), [], 0
    while start < 64:
        piece = TOKENS[start : min(64, start + pieces[len(found) % len(pieces)])]
        found.append(recurrent.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
        start += len(piece)
    assert_close(np.concatenate(found), logits_of(recurrent, TOKENS[:64]))
    assert_moved(found[0][0], found[-1][-1])


def test_recurrent_memory_goes_back_to_nothing_else_than_nothing(recurrent: Any) -> None:
    card = recurrent.card
    assert not card.tree
    assert not card.rollback
    state = settled(recurrent, TOKENS[:20], capacity=64)
    assert state.oldest_crop == 20
    state.crop(20)
    with pytest.raises(CapabilityError, match="cannot go back to length 10, only to 20 or 0"):
        state.crop(10)
    recurrent.forward(TOKENS[20:23], state)
    with pytest.raises(CapabilityError, match="cannot go back"):
        state.keep([0])
    assert (state.length, state.pending, state.oldest_crop) == (20, 3, 23)
    state.keep([0, 1, 2])
    with pytest.raises(CapabilityError, match="chains only"):
        recurrent.forward(TOKENS[:2], state, parents=[-1, -1])
    found = recurrent.forward(TOKENS[23:25], state).logits[0].copy()
    assert_close(found, logits_of(recurrent, TOKENS[:25])[-1])
    state.crop(0)
    assert_close(recurrent.forward(TOKENS[:9], state).logits[0].copy(), logits_of(recurrent, TOKENS[:9])[-1])


def test_a_recurrent_memory_that_was_torn_starts_over(recurrent: Any) -> None:
    state = settled(recurrent, TOKENS[:20], capacity=64)

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(api, name)

        def llama_decode(self, *given: Any) -> int:
            api.llama_decode(*given)
            raise KeyboardInterrupt

    api, state.context._api = state.context._api, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        recurrent.forward(TOKENS[20:22], state)
    state.context._api = api
    with pytest.raises(CapabilityError, match="read again from 0"):
        recurrent.forward(TOKENS[20:22], state)
    assert state.oldest_crop == 21
    state.crop(0)
    assert_close(recurrent.forward(TOKENS[:9], state).logits[0].copy(), logits_of(recurrent, TOKENS[:9])[-1])


def test_a_tree_is_refused_at_the_door(gguf_opener: GgufOpener) -> None:
    with pytest.raises(CapabilityError, match="recurrent"):
        gguf_opener(architecture="mamba", needs=("tree",))
    for need in ("hidden", "lora"):
        with pytest.raises(CapabilityError, match=f"offers no {need}"):
            gguf_opener(needs=(need,))
    with pytest.raises(CapabilityError, match="multiple of 32"):
        gguf_opener(needs=("kv:int8",))
    with pytest.raises(CapabilityError, match="one type"):
        gguf_opener(needs=("kv:int8", "kv:float16"))
