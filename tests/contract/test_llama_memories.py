"""KV caches with limited rollback: layers with a sliding window, and recurrent ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import Stats
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.drafters.source import DraftSetting
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.contract.conftest import GgufOpener
from tests.contract.reference import assert_close, assert_moved, logits_of, settled
from tests.contract.toy_graph import ToyShape

TOKENS = [int(token) for token in np.random.default_rng(11).integers(0, 128, 200)]
WINDOW = ToyShape(window=12)
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]


def assert_near(found: FloatArray, wanted: FloatArray) -> None:
    """Allow for the window toy's activation, which a half-precision table rounds by up to a thousandth."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-3)


WINDOWS = {"gemma2": WINDOW, "gemma3": replace(WINDOW, layers=7)}


@pytest.fixture(params=WINDOWS)
def window(request: pytest.FixtureRequest, gguf_opener: GgufOpener) -> Any:
    return gguf_opener(WINDOWS[request.param], architecture=request.param)


@pytest.fixture(params=["mamba", "lfm2"])
def recurrent(request: pytest.FixtureRequest, gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a recurrent toy; its state, large next to such small weights, is allowed nevertheless."""
    monkeypatch.setattr("edgedecode.runtimes.llama.llama_footprint.SNAPSHOTS_SHARE", 10)
    return gguf_opener(architecture=request.param)


@pytest.fixture(params=["mamba", "lfm2"])
def no_snapshots(request: pytest.FixtureRequest, gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the same toy as if its state were too large to be kept twice."""
    monkeypatch.setattr("edgedecode.runtimes.llama.llama_footprint.SNAPSHOTS_SHARE", 0)
    return gguf_opener(architecture=request.param)


@pytest.mark.parametrize("architecture", WINDOWS)
def test_window_limits_attention(architecture: str, gguf_opener: GgufOpener) -> None:
    window = gguf_opener(WINDOWS[architecture], architecture=architecture)
    wide = gguf_opener(replace(WINDOWS[architecture], window=400), architecture=architecture)
    found, whole = logits_of(window, TOKENS[:60]), logits_of(wide, TOKENS[:60])
    assert_near(found[:12], whole[:12])
    assert_moved(found[20], whole[20])


def in_pieces(model: Any, pieces: list[int], count: int) -> FloatArray:
    """Return the rows of the first tokens, settled in pieces of these sizes in turn."""
    state, found, start = model.new_state(count), [], 0
    while start < count:
        piece = TOKENS[start : min(count, start + pieces[len(found) % len(pieces)])]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
        start += len(piece)
    return np.concatenate(found)


@pytest.mark.parametrize("pieces", [[60], [1], [2], [5, 1, 17]], ids=str)
def test_window_on_chains(window: Any, pieces: list[int]) -> None:
    assert_near(in_pieces(window, pieces, 60), logits_of(window, TOKENS[:60]))


@pytest.mark.parametrize("prompt", [4, 20, 40])
@pytest.mark.parametrize("cuts", [[], [3], [1, 4, 5]], ids=str)
def test_window_on_trees(window: Any, prompt: int, cuts: list[int]) -> None:
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
def test_window_crop_within_the_remaining_cells(window: Any, length: int) -> None:
    state = settled(window, TOKENS[:50], capacity=64)
    assert state.oldest_crop == 0
    state.crop(length)
    found = window.forward(TOKENS[50:55], state, rows="all").logits.copy()
    assert_near(found, logits_of(window, [*TOKENS[:length], *TOKENS[50:55]])[length:])


def test_window_over_rounds_in_a_full_cache(window: Any) -> None:
    """Cells outside the window may be reused: a rollback that is no longer possible is refused, not wrong."""
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


def test_window_refuses_a_rollback_to_reused_cells(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = settled(window, TOKENS[:50], capacity=64)
    monkeypatch.setattr(type(state.context), "first_position", lambda context: 20)
    assert state.oldest_crop == 32
    with pytest.raises(CapabilityError, match="to length 31, only to 32 or 0"):
        state.crop(31)
    state.crop(32)
    assert state.length == 32
    state.crop(0)


@pytest.mark.parametrize("pieces", [[64], [1], [7, 1, 3]], ids=str)
def test_recurrent_on_chains(recurrent: Any, pieces: list[int]) -> None:
    found = in_pieces(recurrent, pieces, 64)
    assert_close(found, logits_of(recurrent, TOKENS[:64]))
    assert_moved(found[0], found[-1])


def interrupted(state: Any, error: BaseException | int) -> Any:
    """Let the state's next passes run and then fail; return the original functions to restore."""
    api = state.context._api

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(api, name)

        def llama_decode(self, *given: Any) -> int:
            api.llama_decode(*given)
            if isinstance(error, BaseException):
                raise error
            return error

    state.context._api = Interrupted()
    return api


def test_recurrent_card_describes_its_rollback(recurrent: Any) -> None:
    card = recurrent.card
    assert card.rollback
    assert not card.tree
    assert any("7 snapshots" in note for note in card.notes)


def test_recurrent_state_drops_rejected_rows(recurrent: Any) -> None:
    state = settled(recurrent, TOKENS[:20], capacity=64)
    recurrent.forward(TOKENS[30:35], state)
    state.keep([0, 1])
    assert (state.length, state.pending) == (22, 0)
    text = [*TOKENS[:20], *TOKENS[30:32], *TOKENS[50:53]]
    found = recurrent.forward(TOKENS[50:53], state, rows="all").logits.copy()
    assert_close(found, logits_of(recurrent, text)[-3:])
    state.crop(22)
    found = recurrent.forward(TOKENS[60:61], state).logits[0].copy()
    assert_close(found, logits_of(recurrent, [*text[:22], TOKENS[60]])[-1])
    assert_moved(found, logits_of(recurrent, [*text, TOKENS[60]])[-1])


@pytest.mark.parametrize("most", [1, 3, 20])
def test_recurrent_state_over_many_operations_equals_a_fresh_one(recurrent: Any, most: int) -> None:
    """Rounds, short passes, crops and failures in any order: settled tokens always equal a fresh state's."""
    rng, text = np.random.default_rng(most), list(TOKENS[:9])
    state, cropped, failed, dropped = settled(recurrent, text, capacity=256), 0, 0, 0
    for _ in range(150):
        if rng.random() < 0.15:
            api = interrupted(state, (KeyboardInterrupt(), -2)[failed % 2])
            with pytest.raises((KeyboardInterrupt, RuntimeUnavailable)):
                recurrent.forward([3] * int(rng.integers(1, 40)), state, rows="none")
            state.context._api = api
            failed += 1
        nodes: list[int] = []
        for _ in range(int(rng.integers(1, 3))):
            more = [int(token) for token in rng.integers(0, 128, int(rng.integers(1, most + 1)))]
            recurrent.forward(more, state, rows="none")
            nodes += more
        kept = int(rng.integers(0, len(nodes) + 1))
        state.keep(range(kept))
        text += nodes[:kept]
        dropped += len(nodes) - kept
        if rng.random() < 0.3 or len(text) > 200:
            length = 0 if len(text) > 200 else int(rng.integers(min(state.oldest_crop, len(text)), len(text) + 1))
            state.crop(length)
            del text[length:]
            cropped += 1
        assert state.length == len(text)
        found = recurrent.forward([9], state).logits[0].copy()
        assert_close(found, logits_of(recurrent, [*text, 9])[-1])
        state.crop(len(text)) if text else state.crop(0)
    assert min(cropped, failed, dropped) > 10


def test_recurrent_rollback_of_single_passes_needs_no_replay(recurrent: Any) -> None:
    state = settled(recurrent, TOKENS[:20], capacity=64)
    for token in TOKENS[20:26]:
        recurrent.forward([token], state)
        state.keep([0])
    assert state.oldest_crop <= 20
    state.crop(22)
    assert not state._snapshots.replay
    found = recurrent.forward([5], state).logits[0].copy()
    assert_close(found, logits_of(recurrent, [*TOKENS[:22], 5])[-1])


def test_recurrent_rollback_reaches_its_oldest_snapshot_only(recurrent: Any) -> None:
    state = settled(recurrent, TOKENS[:20], capacity=64)
    for token in TOKENS[20:40]:
        recurrent.forward([token], state)
        state.keep([0])
    oldest = state.oldest_crop
    assert oldest == 33
    with pytest.raises(CapabilityError, match=f"only to {oldest} or 0"):
        state.crop(oldest - 1)
    assert state.length == 40
    state.crop(oldest)
    found = recurrent.forward([5], state).logits[0].copy()
    assert_close(found, logits_of(recurrent, [*TOKENS[:oldest], 5])[-1])
    state.crop(0)
    assert_close(recurrent.forward(TOKENS[:9], state).logits[0].copy(), logits_of(recurrent, TOKENS[:9])[-1])


class Guesses:
    """A drafter that knows the baseline text and is wrong at every third token of a draft."""

    name, nbytes, free = "guesses", 0, True

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def begin(self, context: Any) -> None: ...

    def unread(self, context: Any) -> int:
        return 0

    def propose(self, context: Any, limit: int, rng: Any, plan: Any = None) -> Draft:
        known = self.text[len(context) : len(context) + limit]
        return Draft(tuple(token if place % 3 < 2 else (token + 1) % 128 for place, token in enumerate(known)))

    def observe(self, context: Any, verdict: Any) -> None: ...

    def close(self) -> None: ...


def decoded(model: Any, drafter: Any, *, draft_max: int) -> tuple[list[int], Stats]:
    tokens, stats = list(TOKENS[:12]), Stats()
    sampling = SamplingOptions(temperature=0.0)
    setting = DecodeSetting(
        sampler=Sampler(sampling, vocabulary_size=128),
        noise=Noise(0, stream=0),
        drafting=None if drafter is None else Drafting.fixed(drafter, draft_max, noise=Noise(0, stream=1)),
    )
    state = model.new_state(128, rows=draft_max + 1)
    for _ in decode(model, state, tokens=tokens, max_tokens=100, setting=setting, stats=stats):
        pass
    state.close()
    return tokens, stats


@pytest.mark.parametrize("draft_max", [1, 2, 4, 8, 16])
def test_decode_on_a_recurrent_target_equals_plain_decoding(recurrent: Any, draft_max: int) -> None:
    plain, _ = decoded(recurrent, None, draft_max=0)
    text, stats = decoded(recurrent, Guesses(plain), draft_max=draft_max)
    assert text == plain
    assert stats.accepted > 0
    assert stats.corrections > 0 or draft_max < 3


@pytest.mark.parametrize("draft_max", [1, 4, 16])
def test_decode_on_a_window_target_equals_plain_decoding(window: Any, draft_max: int) -> None:
    plain, _ = decoded(window, None, draft_max=0)
    text, stats = decoded(window, Guesses(plain), draft_max=draft_max)
    assert text == plain
    assert stats.accepted > 0
    assert stats.corrections > 0 or draft_max < 3


@pytest.mark.parametrize("draft_max", [2, 6, 16])
def test_decode_with_a_recurrent_draft_model_equals_plain_decoding(
    recurrent: Any, gguf_opener: GgufOpener, draft_max: int
) -> None:
    """Including drafts longer than the rollback of the state."""
    target = gguf_opener()
    plain, _ = decoded(target, None, draft_max=0)
    setting = DraftSetting(
        budget=Budget(),
        sampling=SamplingOptions(temperature=0.0),
        vocabulary_size=128,
        capacity=128,
        draft_model=recurrent,
    )
    text, stats = decoded(target, ModelDrafter(recurrent, setting), draft_max=draft_max)
    assert text == plain
    assert stats.corrections > 0


def test_recurrent_state_without_snapshots_rolls_back_to_zero_only(no_snapshots: Any) -> None:
    card = no_snapshots.card
    assert not card.tree
    assert not card.rollback
    assert any("without drafts only" in note for note in card.notes)
    state = settled(no_snapshots, TOKENS[:20], capacity=64)
    assert state.oldest_crop == 20
    state.crop(20)
    with pytest.raises(CapabilityError, match="cannot go back to length 10, only to 20 or 0"):
        state.crop(10)
    no_snapshots.forward(TOKENS[20:23], state)
    with pytest.raises(CapabilityError, match="cannot go back"):
        state.keep([0])
    assert (state.length, state.pending, state.oldest_crop) == (20, 3, 23)
    state.keep([0, 1, 2])
    with pytest.raises(CapabilityError, match="chains only"):
        no_snapshots.forward(TOKENS[:2], state, parents=[-1, -1])
    found = no_snapshots.forward(TOKENS[23:25], state).logits[0].copy()
    assert_close(found, logits_of(no_snapshots, TOKENS[:25])[-1])
    state.crop(0)
    assert_close(no_snapshots.forward(TOKENS[:9], state).logits[0].copy(), logits_of(no_snapshots, TOKENS[:9])[-1])


def test_recurrent_state_without_snapshots_starts_over_after_an_interrupt(no_snapshots: Any) -> None:
    state = settled(no_snapshots, TOKENS[:20], capacity=64)
    api = interrupted(state, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        no_snapshots.forward(TOKENS[20:22], state)
    state.context._api = api
    with pytest.raises(CapabilityError, match="or 0: prefill it from 0"):
        no_snapshots.forward(TOKENS[20:22], state)
    assert state.oldest_crop == 21
    state.crop(0)
    assert_close(no_snapshots.forward(TOKENS[:9], state).logits[0].copy(), logits_of(no_snapshots, TOKENS[:9])[-1])


def test_open_refuses_needs_that_the_model_lacks(gguf_opener: GgufOpener) -> None:
    with pytest.raises(CapabilityError, match="recurrent"):
        gguf_opener(architecture="mamba", needs=("tree",))
    with pytest.raises(CapabilityError, match="does not offer static"):
        gguf_opener(needs=("static",))
    with pytest.raises(CapabilityError, match="cannot use PEFT adapters"):
        gguf_opener(architecture="mamba", needs=("lora",))
    with pytest.raises(CapabilityError, match="multiple of 32"):
        gguf_opener(needs=("kv:int8",))
    with pytest.raises(CapabilityError, match="one type"):
        gguf_opener(needs=("kv:int8", "kv:float16"))
