"""Several graphs over one weights file: which is opened, and what each computes, against numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, ManifestError
from edgedecode.memory import Budget
from edgedecode.protocols import AdapterModel, LanguageModel
from edgedecode.types import AdapterUse, FloatArray, LowRank
from tests.contract.conftest import Opener, open_entry
from tests.contract.reference import assert_close, assert_moved, logits_of, settled
from tests.contract.toy_graph import LORA_MODULES, LORA_RANK, ToyShape
from tests.contract.toy_numpy import Floats, ToyNumpy

SHAPE = ToyShape(graphs=("base", "hidden", "lora", "kv8"))
PACKED = replace(SHAPE, packed=True)
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 128, 60)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
USE = AdapterUse(name="formal", digest="f0")


def width_of(shape: ToyShape, module: str) -> tuple[int, int]:
    """Return a projection's inputs and outputs."""
    query, cache = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {"q": (shape.hidden, query), "k": (shape.hidden, cache), "v": (shape.hidden, cache)}
    sizes |= {"o": (query, shape.hidden), "down": (shape.mlp, shape.hidden), "gate_up": (shape.hidden, 2 * shape.mlp)}
    return sizes[module.removesuffix("_proj")]


def adapter(shape: ToyShape, *, seed: int = 0, modules: tuple[str, ...] = LORA_MODULES) -> list[LowRank]:
    """Draw an adapter whose ranks differ from module to module."""
    draw = np.random.default_rng(seed)
    found = []
    for layer in range(shape.layers):
        for place, module in enumerate(modules):
            inputs, outputs = width_of(shape, module)
            rank = LORA_RANK - place
            down = draw.standard_normal((rank, inputs), np.float32) / np.float32(inputs**0.5)
            found.append(LowRank(layer, module, down, draw.standard_normal((outputs, rank), np.float32) / 4))
    return found


def deltas(matrices: list[LowRank], scale: float = 1.0) -> dict[str, Floats]:
    """Return what the adapter adds, by the toy's names and in its orientation."""
    found: dict[str, Floats] = {}
    for part in matrices:
        delta = part.product().T.astype(np.float64) * scale
        names = ("gate", "up") if part.module == "gate_up_proj" else (part.module.removesuffix("_proj"),)
        pieces = np.split(delta, len(names), axis=1)
        found |= {f"layer{part.layer}.{name}": piece for name, piece in zip(names, pieces, strict=True)}
    return found


def read(model: LanguageModel, adapter: AdapterUse | None = None) -> FloatArray:
    return model.forward(TOKENS, model.new_state(60), rows="all", adapter=adapter).logits.copy()


@pytest.fixture(params=[SHAPE, PACKED], ids=["apart", "packed"])
def shape(request: pytest.FixtureRequest) -> ToyShape:
    found: ToyShape = request.param
    return found


@pytest.fixture
def lora(opener: Opener, shape: ToyShape) -> Iterator[LanguageModel]:
    made = opener(shape, needs=("lora",))
    yield made
    made.close()


def held(model: LanguageModel) -> AdapterModel:
    assert isinstance(model, AdapterModel)
    return model


@pytest.mark.parametrize(
    ("needs", "hidden", "rank", "kv_type"),
    [
        ((), 0, 0, "float32"),
        (("tree",), 0, 0, "float32"),
        (("hidden",), 64, 0, "float32"),
        (("tree", "lora"), 0, LORA_RANK, "float32"),
        (("kv:int8", "tree"), 0, 0, "int8"),
    ],
    ids=str,
)
def test_the_smallest_graph_that_serves_is_opened(
    opener: Opener, needs: tuple[str, ...], hidden: int, rank: int, kv_type: str
) -> None:
    model = opener(SHAPE, needs=needs)
    card = model.card
    assert (card.hidden_size, card.lora_rank, card.kv_types) == (hidden, rank, (kv_type,))
    assert card.lora_modules == (LORA_MODULES if rank else ())
    model.close()


@pytest.mark.parametrize(
    ("graphs", "needs", "words"),
    [
        (("base",), ("kv:int8",), "offers kv:int8.*base: tree, rows, float32 KV.*--graphs base,kv8"),
        (("base", "kv8"), ("lora",), "offers lora.*--graphs base,lora"),
        (("base", "hidden", "lora"), ("lora", "hidden"), "offers hidden and lora.*no one graph"),
        (("base", "hidden", "kv8"), ("kv:int8", "hidden"), "offers hidden and kv:int8"),
        (("kv8",), (), "offers float32 KV"),
    ],
    ids=str,
)
def test_what_no_graph_offers_is_refused(
    opener: Opener, graphs: tuple[str, ...], needs: tuple[str, ...], words: str
) -> None:
    entry, budget = opener.entry(SHAPE), Budget()
    entry = replace(entry, graphs={name: graph for name, graph in entry.graphs.items() if name in graphs})
    with pytest.raises(CapabilityError, match=words):
        open_entry(entry, opener.root(SHAPE), budget=budget, needs=needs)
    assert budget.leases == ()


def test_of_equal_graphs_the_smaller_file_is_opened(opener: Opener) -> None:
    entry, root = opener.entry(SHAPE), opener.root(SHAPE)
    big = root / "big.onnx"
    big.write_bytes((root / "base.onnx").read_bytes() + b"\0")  # would not open
    graphs = {"big": replace(entry.graphs["base"], file="big.onnx"), **entry.graphs}
    open_entry(replace(entry, graphs=graphs), root, budget=Budget()).close()
    big.unlink()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("base", {"kv_type": "int8"}, "keeps keys as"),
        ("base", {"capabilities": ("tree", "rows", "hidden")}, "has no hidden"),
        ("base", {"capabilities": ("tree", "rows", "lora"), "lora_rank": 8}, "takes no adapter"),
    ],
    ids=str,
)
def test_a_graph_that_is_not_what_the_manifest_says(
    opener: Opener, name: str, change: dict[str, object], words: str
) -> None:
    entry = opener.entry(SHAPE)
    graph = replace(entry.graphs[name], **change)  # type: ignore[arg-type]
    needs = ("kv:int8",) if graph.kv_type == "int8" else ()
    with pytest.raises(ManifestError, match=words):
        open_entry(replace(entry, graphs={name: graph}), opener.root(SHAPE), budget=Budget(), needs=needs)


def test_hidden_states_are_what_the_head_reads(opener: Opener) -> None:
    model = opener(SHAPE, needs=("hidden",))
    expected = ToyNumpy(SHAPE).hidden(TOKENS)
    for rows, wanted in (("last", [59]), ("all", range(60)), ("none", []), ([5], [5]), ([40, 2, 9], [40, 2, 9])):
        output = model.forward(TOKENS, model.new_state(60), rows=rows)  # type: ignore[arg-type]
        assert output.hidden is not None
        assert output.hidden.shape == (len(wanted), model.card.hidden_size)
        assert_close(output.hidden, expected[list(wanted)])
    plain = opener(SHAPE)
    assert np.array_equal(read(model), read(plain))
    assert plain.forward([1], plain.new_state(2)).hidden is None
    plain.close()
    model.close()


def test_hidden_states_of_a_long_pass_keep_the_order_asked_for(opener: Opener) -> None:
    model = opener(SHAPE, needs=("hidden",))
    tokens, rows = TOKENS * 8, [479, 3, 260]
    output = model.forward(tokens, model.new_state(480), rows=rows)
    assert output.hidden is not None
    assert_close(output.hidden, ToyNumpy(SHAPE).hidden(tokens)[rows])
    assert_close(output.logits, ToyNumpy(SHAPE).logits(tokens)[rows])
    model.close()


def test_hidden_rows_are_leased(opener: Opener) -> None:
    budget = Budget()
    model = opener(SHAPE, budget=budget, needs=("hidden",))
    model.forward([1, 2, 3], model.new_state(8), rows="all")
    assert [lease.nbytes for lease in budget.leases if lease.name == "logits:target"] == [3 * (128 + 64) * 4]
    model.close()


def test_without_an_adapter_the_graph_is_the_base(opener: Opener, shape: ToyShape, lora: LanguageModel) -> None:
    base = opener(shape)
    assert np.array_equal(read(lora), read(base))
    base.close()


def test_an_adapter_is_added_to_the_weights(shape: ToyShape, lora: LanguageModel) -> None:
    matrices = adapter(shape)
    held(lora).add_adapter(USE.digest, matrices)
    found = read(lora, USE)
    assert_close(found, ToyNumpy(shape, deltas(matrices)).logits(TOKENS))
    assert_moved(found, read(lora))


@pytest.mark.parametrize("modules", [("k_proj",), ("q_proj", "v_proj"), ("down_proj", "gate_up_proj")], ids=str)
def test_an_adapter_may_change_some_projections(shape: ToyShape, lora: LanguageModel, modules: tuple[str, ...]) -> None:
    matrices = adapter(shape, modules=modules)[: -len(modules)]  # not in the last layer
    held(lora).add_adapter(USE.digest, matrices)
    assert_close(read(lora, USE), ToyNumpy(shape, deltas(matrices)).logits(TOKENS))


def test_scales_are_folded_in(shape: ToyShape, lora: LanguageModel) -> None:
    matrices = adapter(shape)
    held(lora).add_adapter(USE.digest, matrices, scale=0.5)
    for scale in (1.0, 0.25, 0.25, 2.0, 1.0, 0.0):
        expected = ToyNumpy(shape, deltas(matrices, 0.5 * scale)).logits(TOKENS)
        assert_close(read(lora, replace(USE, scale=scale)), expected)


def test_adapters_change_between_passes_of_one_state(shape: ToyShape, lora: LanguageModel) -> None:
    """Each pass is compared with fresh states, whose last pass alone has the adapter."""
    other = AdapterUse(name="pirate", digest="p1")
    held(lora).add_adapter(USE.digest, adapter(shape))
    held(lora).add_adapter(other.digest, adapter(shape, seed=1))
    state = settled(lora, TOKENS[:20], capacity=60)
    for use in (None, USE, other, replace(other, scale=0.5), USE, None, other):
        found = lora.forward(TOKENS[20:25], state, rows="all", adapter=use).logits.copy()
        state.crop(20)
        fresh = settled(lora, TOKENS[:20], capacity=60)
        assert np.array_equal(found, lora.forward(TOKENS[20:25], fresh, rows="all", adapter=use).logits)
        fresh.close()


def test_two_states_with_two_scales(shape: ToyShape, lora: LanguageModel) -> None:
    held(lora).add_adapter(USE.digest, adapter(shape))
    half = replace(USE, scale=0.5)
    whole, halved = read(lora, USE), read(lora, half)
    first, second = lora.new_state(60), lora.new_state(60)
    for start in range(0, 60, 20):
        left = lora.forward(TOKENS[start : start + 20], first, rows="all", adapter=USE).logits.copy()
        right = lora.forward(TOKENS[start : start + 20], second, rows="all", adapter=half).logits.copy()
        assert_close(left, whole[start : start + 20])
        assert_close(right, halved[start : start + 20])


def test_an_adapter_of_the_same_digest_is_replaced(shape: ToyShape, lora: LanguageModel) -> None:
    held(lora).add_adapter(USE.digest, adapter(shape))
    state = settled(lora, TOKENS[:20], capacity=60)
    before = lora.forward(TOKENS[20:25], state, rows="all", adapter=USE).logits.copy()
    held(lora).add_adapter(USE.digest, adapter(shape, seed=1))
    state.crop(20)
    after = lora.forward(TOKENS[20:25], state, rows="all", adapter=USE).logits.copy()
    assert_moved(before, after)


def test_adapters_that_are_not_held_are_refused(shape: ToyShape, lora: LanguageModel) -> None:
    state = lora.new_state(8)
    with pytest.raises(CapabilityError, match="holds no adapter 'formal'"):
        lora.forward([1], state, adapter=USE)
    held(lora).add_adapter(USE.digest, adapter(shape))
    lora.forward([1], state, adapter=USE)
    held(lora).remove_adapter(USE.digest)
    held(lora).remove_adapter(USE.digest)
    with pytest.raises(CapabilityError, match="holds no adapter 'formal'"):
        lora.forward([1], state, adapter=USE)
    assert state.pending == 1


def test_adapters_are_leased(opener: Opener, shape: ToyShape) -> None:
    budget = Budget()
    model = opener(shape, budget=budget, needs=("lora",))
    matrices = adapter(shape)

    def leased() -> int:
        return sum(lease.nbytes for lease in budget.leases if lease.name.startswith("adapter:"))

    held(model).add_adapter(USE.digest, matrices)
    plain = leased()
    assert plain >= sum(part.down.nbytes + part.up.nbytes for part in matrices)
    model.forward([1], model.new_state(8), adapter=replace(USE, scale=0.5))
    assert leased() > plain
    budget.limit_nbytes = budget.used_nbytes + 100
    with pytest.raises(BudgetExceeded, match="adapter:target:p1"):
        held(model).add_adapter("p1", matrices)
    held(model).remove_adapter(USE.digest)
    assert leased() == 0
    model.close()


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        (LowRank(0, "gate_proj", np.ones((2, 64), np.float32), np.ones((96, 2), np.float32)), CapabilityError, "gate"),
        (LowRank(9, "o_proj", np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)), CapabilityError, "layer 9"),
        (LowRank(0, "o_proj", np.ones((9, 64), np.float32), np.ones((64, 9), np.float32)), CapabilityError, "rank 9"),
        (LowRank(0, "o_proj", np.ones((2, 65), np.float32), np.ones((64, 2), np.float32)), InputError, "another model"),
        (LowRank(0, "k_proj", np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)), InputError, "another model"),
        (LowRank(0, "o_proj", np.ones((2, 64), np.float32), np.ones((64, 3), np.float32)), InputError, "do not fit"),
        (LowRank(0, "gate_up_proj", np.ones((2, 64), np.float32), np.ones((193, 2), np.float32)), InputError, "97"),
    ],
    ids=["module", "layer", "rank", "inputs", "outputs", "ranks differ", "stack"],
)
def test_matrices_that_do_not_fit_are_refused(
    lora: LanguageModel, part: LowRank, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        held(lora).add_adapter(USE.digest, [part])


def test_a_graph_without_adapters_takes_none(opener: Opener) -> None:
    model = opener(SHAPE)
    with pytest.raises(CapabilityError, match="takes no adapter"):
        held(model).add_adapter(USE.digest, adapter(SHAPE))
    held(model).add_adapter(USE.digest, [])
    with pytest.raises(CapabilityError, match="no adapter inputs"):
        model.forward([1], model.new_state(4), adapter=USE)
    model.close()


def test_an_int8_cache_rounds_by_channel(opener: Opener, shape: ToyShape) -> None:
    model = opener(shape, needs=("kv:int8",))
    found = read(model)
    expected = ToyNumpy(shape, int8_cache=True).logits(TOKENS)
    exact = ToyNumpy(shape).logits(TOKENS)
    rounding = np.abs(expected - exact).mean()
    assert rounding > 1e-3
    assert np.abs(found - expected).mean() < rounding / 20  # a value on an edge may round the other way
    model.close()


def test_an_int8_state_is_planned_at_its_size(opener: Opener) -> None:
    nbytes = []
    for needs in ((), ("kv:int8",)):
        model = opener(SHAPE, needs=needs)
        nbytes.append(model.new_state(100).nbytes)
        model.close()
    assert nbytes[0] - nbytes[1] == 100 * 2 * 2 * 2 * 16 * 3


def test_an_int8_tree_in_two_passes_equals_its_chains(opener: Opener, shape: ToyShape) -> None:
    model, nodes = opener(shape, needs=("kv:int8",)), TOKENS[:10]
    state = settled(model, TOKENS[20:40], capacity=60)
    first = model.forward(nodes[:4], state, parents=PARENTS[:4], rows="all").logits.copy()
    found = np.concatenate((first, model.forward(nodes[4:], state, parents=PARENTS[4:], rows="all").logits))
    for path in ([0, 1, 3, 7], [0, 2, 4, 9], [5, 6]):
        chain = logits_of(model, [*TOKENS[20:40], *(nodes[node] for node in path)])[20:]
        assert_close(found[path], chain)
    state.keep([0, 2, 4])
    after = model.forward(TOKENS[50:53], state, rows="all").logits.copy()
    assert_close(after, logits_of(model, [*TOKENS[20:40], nodes[0], nodes[2], nodes[4], *TOKENS[50:53]])[-3:])
    state.crop(25 - 5)
    assert_close(model.forward(TOKENS[:1], state).logits.copy(), logits_of(model, [*TOKENS[20:40], TOKENS[0]])[-1:])
    model.close()
