"""Recurrent layers on our own kernels: drafts are dropped without a second pass, and every bit is plain decoding's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LowRank
from edgedecode.drafters.model_state import ModelState
from edgedecode.errors import CapabilityError, ManifestError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.runtimes.onnx.gguf.metadata import Metadata, read_metadata
from edgedecode.runtimes.onnx.gguf.network import build_graph
from edgedecode.runtimes.onnx.gguf.weights import GgufWeights
from edgedecode.runtimes.onnx.kernels.products import NotServed
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from edgedecode.runtimes.onnx.onnx_state import OnnxState
from edgedecode.runtimes.onnx.recurrence import HEADER, SLOTS, Recurrence, RecurrentShape, recurrent_nbytes
from tests.contract.conftest import GgufOpener, open_entry
from tests.contract.reference import assert_close, assert_moved
from tests.contract.toy_graph import ToyShape

pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
SHAPE = ToyShape(layers=4, context=512)
TOKENS = np.random.default_rng(3).integers(0, SHAPE.rows, 400).tolist()
STREAMS, ROUNDS, LENGTH = 10, 1000, 150
SHARES = [0.3, 0.3, 0.15, 0.1, 0.05, 0.08, 0.02]
"""Of the kinds of rounds in `Stream.round`."""


@pytest.fixture(scope="module")
def model(gguf_opener: GgufOpener) -> Any:
    return open_hybrid(gguf_opener)


def open_hybrid(gguf_opener: GgufOpener, *, needs: tuple[str, ...] = (), budget: Budget | None = None) -> OnnxModel:
    """Open the toy with convolutions in even layers and attention in odd ones."""
    entry, root = gguf_opener.entry(SHAPE, "lfm2"), gguf_opener.root(SHAPE, "lfm2")
    found = open_entry(replace(entry, graphs={}, weights=entry.gguf), root, budget=budget or Budget(), needs=needs)
    assert isinstance(found, OnnxModel)
    return found


def read(model: OnnxModel, tokens: list[int], *, width: int = SHAPE.context) -> tuple[OnnxState, FloatArray]:
    """Return a state that has settled these tokens, in passes of this width, and all their logits."""
    state, found = model.new_state(SHAPE.context, rows=len(tokens)), []
    assert isinstance(state, OnnxState)
    for start in range(0, len(tokens), width):
        piece = tokens[start : start + width]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
    return state, np.concatenate(found)


@pytest.mark.parametrize("width", [1, 7, 64, 65, 200])
def test_passes_of_every_width_give_the_same_bits(model: OnnxModel, width: int) -> None:
    assert model.card.row_invariant
    whole, pieces = (read(model, TOKENS[:300], width=each)[1] for each in (300, width))
    assert np.array_equal(whole, pieces)


def test_logits_are_those_of_llama_cpp(model: OnnxModel, gguf_opener: GgufOpener) -> None:
    theirs = gguf_opener(SHAPE, architecture="lfm2")
    expected = theirs.forward(TOKENS[:300], theirs.new_state(300, rows=300), rows="all").logits
    assert_close(read(model, TOKENS[:300])[1], expected)


def inputs_of(state: OnnxState) -> list[FloatArray]:
    """Return what each convolution will read next of the settled rows: its state after the accepted ones."""
    memory, found = state.recurrence, list[FloatArray]()
    if memory is None:
        return found
    for (_, values), (_, slots) in zip(memory._memories[0::2], memory._memories[1::2], strict=True):
        rows = slots.numpy()
        past = values.numpy()[HEADER:].reshape(-1, rows.shape[1])
        found.append(np.concatenate([past, rows[memory._accepted]])[-len(past) :])
    return found


class Stream:
    """A text that one state decodes in random rounds, and another state of the model token by token."""

    def __init__(
        self, model: OnnxModel, rng: np.random.Generator, counts: dict[str, int], *, shares: Sequence[float] = SHARES
    ) -> None:
        self.model, self.rng, self.counts, self.shares = model, rng, counts, shares
        self.text = [int(rng.integers(model.card.rows))]
        """One token more than the states have."""
        self.state, self.plain = (model.new_state(model.card.context, rows=40, tree=True) for _ in range(2))
        assert isinstance(self.state, OnnxState)
        assert isinstance(self.plain, OnnxState)

    def round(self) -> None:
        rng = self.rng
        kind = rng.choice(["chain", "tree", "two passes", "undone", "failing", "cropped", "prompt"], p=self.shares)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.text) > LENGTH:
            self.back(int(rng.integers(LENGTH // 2)))
        elif kind == "cropped":
            self.back(int(rng.integers(max(0, self.state.length - 12), self.state.length + 1)))
        elif kind == "prompt":
            self.grow(int(rng.integers(60, 100)), [])
        elif kind == "failing":
            self.fail()
            self.grow(0, [])
        else:
            self.draft(kind)

    def draft(self, kind: str) -> None:
        """Verify a random chain or tree, of which a random path is accepted; its first tokens are the text's."""
        count, rng = int(self.rng.integers(0, 9)), self.rng
        parents = [row if kind == "chain" else int(rng.integers(row + 1)) for row in range(count)]
        path, node = list[int](), int(rng.integers(-1, count))
        while node >= 0:
            path.insert(0, node)
            node = parents[node] - 1  # row 0 is the text's last token
        self.grow(count, [] if kind == "undone" else path, parents=parents, kind=kind)

    def grow(self, count: int, path: list[int], *, parents: list[int] | None = None, kind: str = "chain") -> None:
        """Run a round's passes: the last token, then nodes whose parents count from it."""
        nodes = self.rng.integers(0, self.model.card.rows, count).tolist()
        if parents is None:  # a prompt: all of it is kept
            self.text += nodes
            rows = self.text[self.state.length :]
            logits = self.model.forward(rows, self.state, rows="all").logits.copy()
            self.state.keep(range(len(rows)))
            self.settle(rows, logits, range(len(rows)))
            return
        rows, above = [self.text[-1], *nodes], [-1, *parents]
        if kind == "two passes" and count > 1:
            first = self.model.forward(rows[:2], self.state, parents=above[:2], rows="all").logits.copy()
            rest = self.model.forward(rows[2:], self.state, parents=above[2:], rows="all").logits.copy()
            logits = np.concatenate([first, rest])
        else:
            logits = self.model.forward(rows, self.state, parents=above, rows="all").logits.copy()
        if kind == "undone":
            self.state.crop(self.state.length) if count % 2 else self.state.keep([])
            return
        kept = [0, *(node + 1 for node in path)]
        self.state.keep(kept)
        self.text += [nodes[node] for node in path]
        self.settle([rows[row] for row in kept], logits, kept)

    def settle(self, tokens: list[int], logits: FloatArray, kept: Any) -> None:
        """Compare with plain decoding, and choose the next token."""
        for token, row in zip(tokens, kept, strict=True):
            expected = self.model.forward([token], self.plain).logits[0]
            self.plain.keep([0])
            assert np.array_equal(logits[row], expected)
        assert self.state.length == self.plain.length == len(self.text)
        for found, wanted in zip(inputs_of(self.state), inputs_of(self.plain), strict=True):
            assert np.array_equal(found, wanted)
        self.text.append(int(self.rng.integers(self.model.card.rows)))

    def back(self, length: int) -> None:
        """Go back to a length, or where the state can: what it lacks is read again in the next round."""
        self.state.crop(length)
        assert self.state.length <= length
        self.counts["landed below"] = self.counts.get("landed below", 0) + (self.state.length < length)
        self.plain.crop(0)
        if self.state.length:
            self.model.forward(self.text[: self.state.length], self.plain, rows="none")
            self.plain.keep(range(self.state.length))
        del self.text[self.state.length + 1 :]

    def fail(self) -> None:
        """Let a pass fail behind the first convolution, which has taken the accepted rows by then."""
        with failing(self.state), pytest.raises(RuntimeUnavailable, match="where its rows begin"):
            self.model.forward(self.text[-1:], self.state)


@contextmanager
def failing(state: OnnxState) -> Iterator[None]:
    """Let passes fail in the second convolution, whose position is wrong meanwhile."""
    memory = state.recurrence
    assert memory is not None
    header = memory._memories[2][1].numpy()[:2].view(np.int64)
    right = header.copy()

    def begin(*rows: Any, **more: Any) -> None:
        Recurrence.begin(memory, *rows, **more)
        header[:] = -1

    memory.begin = begin  # type: ignore[method-assign]
    try:
        yield
    finally:
        header[:] = right
        del memory.begin


def test_random_rounds_are_plain_decoding(model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, trees in one pass and two, undone and failing passes, rollbacks and prompts, over interleaved states."""
    computed, asked = counting(monkeypatch, "_run"), counting(monkeypatch, "forward")
    rng, counts = np.random.default_rng(5), dict[str, int]()
    streams = [Stream(model, rng, counts) for _ in range(STREAMS)]
    for _ in range(STREAMS * ROUNDS):
        streams[rng.integers(STREAMS)].round()
    print(counts)
    assert min(counts.values()) > 100
    assert sum(computed) == sum(asked)  # no row is computed twice


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Return the rows of every call of this method of the models from now on."""
    found, method = list[int](), getattr(OnnxModel, name)

    def counted(self: OnnxModel, first: Any, *more: Any, **named: Any) -> object:
        found.append(named["width"] if name == "_run" else len(first))
        return method(self, first, *more, **named)

    monkeypatch.setattr(OnnxModel, name, counted)
    return found


def test_adapters_change_attention_mlps_and_products_beside_convolutions(gguf_opener: GgufOpener) -> None:
    """By the names of transformers' class; llama.cpp's logits are the same."""
    model = open_hybrid(gguf_opener, needs=("lora",))
    rng, hidden = np.random.default_rng(0), SHAPE.hidden
    use = AdapterUse("a", "a")

    def change(layer: int, module: str, outputs: int) -> LowRank:
        down, up = rng.standard_normal((2, hidden)), rng.standard_normal((outputs, 2))
        return LowRank(layer, module, down.astype(np.float32), up.astype(np.float32))

    matrices = [change(0, "w1", SHAPE.mlp), change(0, "in_proj", 3 * hidden), change(0, "out_proj", hidden)]
    matrices += [change(1, "q_proj", SHAPE.heads * SHAPE.head_size), change(1, "out_proj", hidden)]
    model.add_adapter("a", matrices)
    base = read(model, TOKENS[:80])[1]
    found = [model.forward(TOKENS[:80], model.new_state(80, rows=80), rows="all", adapter=use).logits.copy()]
    state = model.new_state(80, rows=80)
    for start in range(0, 80, 8):
        found.append(model.forward(TOKENS[start : start + 8], state, rows="all", adapter=use).logits.copy())
        state.keep(range(8))
    assert np.array_equal(found[0], np.concatenate(found[1:]))
    assert_moved(found[0], base)
    theirs = gguf_opener(SHAPE, architecture="lfm2")
    assert isinstance(theirs, AdapterModel)
    theirs.add_adapter("a", matrices)
    wanted = theirs.forward(TOKENS[:80], theirs.new_state(80, rows=80), rows="all", adapter=use).logits
    assert np.abs(found[0] - wanted).max() < 1e-4 * np.abs(wanted).max()
    with pytest.raises(CapabilityError, match="takes no adapter for layer 0 q_proj"):
        model.add_adapter("b", [change(0, "q_proj", hidden)])


def test_states_refuse_what_they_cannot_do(model: OnnxModel) -> None:
    """And no refusal changes them."""
    state, plain = read(model, TOKENS[:30])[0], read(model, TOKENS[:30])[0]
    with pytest.raises(CapabilityError, match="121 rows of a tree are pending, and recurrent layers keep 64"):
        model.forward(TOKENS[30:151], state, parents=[-1, *range(119), -1])
    model.forward(TOKENS[30:130], state)
    with pytest.raises(CapabilityError, match="36 of the pending rows must be kept, and 20 are"):
        state.keep(range(20))
    state.crop(30)  # those rows are in the states
    assert state.length < 30
    rest = TOKENS[state.length : 31]
    assert np.array_equal(model.forward(rest, state).logits, model.forward(TOKENS[30:31], plain).logits)


def test_a_failed_prompt_leaves_a_state_that_goes_back(model: OnnxModel) -> None:
    """Some layers have taken rows of it: no pass runs before the state is rolled back."""
    state, plain = read(model, TOKENS[:30])[0], read(model, TOKENS[:30])[0]
    with failing(state), pytest.raises(RuntimeUnavailable, match="where its rows begin"):
        model.forward(TOKENS[30:130], state)
    with pytest.raises(CapabilityError, match="roll the state back"):
        model.forward(TOKENS[30:31], state)
    state.crop(30)
    rest = TOKENS[state.length : 31]
    assert np.array_equal(model.forward(rest, state).logits, model.forward(TOKENS[30:31], plain).logits)


def test_a_long_text_goes_back_a_little_further_only(model: OnnxModel) -> None:
    """Snapshots are denser near the end of the text, where edits are likely. Without any, the text is read from 0."""
    state, _ = read(model, TOKENS[:390], width=1)
    for length in (380, 300, 150):
        state.crop(length)
        assert length - state.length <= (390 - length) + 2 * SLOTS
        more = TOKENS[state.length : 390]
        model.forward(more, state, rows="none")
        state.keep(range(len(more)))
    state.crop(390)
    state.crop(389)
    assert state.length == 389  # no layer has those rows yet
    model.forward(TOKENS[389:390], state, rows="none")
    state.crop(40)
    assert state.length == 0


@pytest.mark.parametrize(("nbytes", "capacity", "count"), [(83_000, 200, 8), (19 << 20, 500, 1), (50 << 20, 4000, 2)])
def test_snapshots_are_few_where_states_are_large(nbytes: int, capacity: int, count: int) -> None:
    shape = RecurrentShape("0", nbytes // 4, 1000)
    assert recurrent_nbytes([shape], capacity) == 4 * ((nbytes // 4) * (1 + count) + SLOTS * 1000)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no attention": ({"kv": (0, 0, 0, 0)}, ManifestError, "attn_k.weight has the shape"),
    "attention without matrices": ({"kv": (2, 2, 2, 2)}, ManifestError, "it has no tensor blk.0.attn_q_norm.weight"),
    "other convolutions": (
        {"fields": {"lfm2.shortconv.l_cache": 3}},
        ManifestError,
        "conv.weight has the shape",
    ),
    "a matrix too many": ({"tensors": "blk.0.ssm_in.weight"}, NotServed, "blk.0.ssm_in.weight, which its architecture"),
}


@pytest.mark.parametrize("name", BAD)
def test_layers_that_disagree_with_their_tensors_are_refused(gguf_opener: GgufOpener, name: str) -> None:
    change, kind, words = BAD[name]
    path = gguf_opener.root(SHAPE, "lfm2") / gguf_opener.entry(SHAPE, "lfm2").gguf
    contents = read_metadata(path).contents
    kept = contents.tensors["blk.0.shortconv.in_proj.weight"]
    changed = replace(
        contents,
        layers={**contents.layers, "lfm2.attention.head_count_kv": change.get("kv", (0, 2, 0, 2))},
        fields={**contents.fields, **change.get("fields", {})},
        tensors={**contents.tensors, **({change["tensors"]: kept} if "tensors" in change else {})},
    )
    with pytest.raises(kind, match=words):
        build_graph(Metadata(changed, "lfm2"), GgufWeights(path, changed, findings={}), context=64)


@pytest.mark.parametrize(("width", "kept"), [(3, 30), (100, 0)])
def test_an_interrupt_behind_a_pass_is_found_out(model: OnnxModel, width: int, kept: int) -> None:
    """The layers have the pass's accepted rows, or its own first ones, and the state does not know it."""
    state, plain = read(model, TOKENS[:30])[0], read(model, TOKENS[:30])[0]
    memory = state.recurrence
    assert memory is not None

    def interrupted(length: int) -> None:
        raise KeyboardInterrupt

    memory.commit = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        model.forward(TOKENS[30 : 30 + width], state)
    del memory.commit
    state.crop(30)
    assert state.length == kept
    rest = TOKENS[state.length : 31]
    assert np.array_equal(model.forward(rest, state).logits, model.forward(TOKENS[30:31], plain).logits)


def test_an_interrupt_while_going_back_is_found_out(model: OnnxModel) -> None:
    """The layers have a snapshot's rows, and the state still counts all."""
    state, plain = read(model, TOKENS[:200], width=20)[0], read(model, TOKENS[:200])[0]
    memory: Any = state.recurrence
    values = memory._states

    class Interrupted:
        def __setitem__(self, key: slice, found: FloatArray) -> None:
            values[key] = found
            raise KeyboardInterrupt

    memory._states = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        state.crop(100)
    memory._states = values
    state.crop(200)
    rest = TOKENS[state.length : 201]
    assert np.array_equal(model.forward(rest, state).logits, model.forward(TOKENS[200:201], plain).logits)


def test_an_interrupted_draft_model_reads_another_text(model: OnnxModel) -> None:
    """Its layers have rows of a text that the next one has not, though none were kept."""
    drafts, other = ModelState(model, capacity=400), [*TOKENS[:20], *TOKENS[200:230]]
    drafts.begin(TOKENS[:150])
    drafts.follow(TOKENS[:150])  # the interrupt comes behind it
    drafts.begin(other)
    assert np.array_equal(drafts.catch_up(other).copy(), read(model, other)[1][-1])
