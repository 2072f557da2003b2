"""Several graphs on one weights file: the one that is opened, and the results of each against numpy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_choice import engine_kernels
from edgedecode.engines.kv_scales import calibrate_scales
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Graph
from edgedecode.runtimes.onnx.graph_choice import choose_graph
from tests.contract.conftest import Opener, open_entry
from tests.contract.reference import assert_close, logits_of, settled
from tests.contract.toy_graph import LORA_MODULES, LORA_RANK, ToyShape
from tests.contract.toy_numpy import ToyNumpy

SHAPE = ToyShape(graphs=("base", "lora", "kv8"))
PACKED = replace(SHAPE, packed=True)
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 128, 60)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]


def read(model: LanguageModel) -> FloatArray:
    return model.forward(TOKENS, model.new_state(60), rows="all").logits.copy()


@pytest.fixture(params=[SHAPE, PACKED], ids=["separate", "packed"])
def shape(request: pytest.FixtureRequest) -> ToyShape:
    found: ToyShape = request.param
    return found


@pytest.mark.parametrize(
    ("needs", "rank", "kv_type"),
    [
        ((), 0, "float32"),
        (("tree",), 0, "float32"),
        (("tree", "lora"), LORA_RANK, "float32"),
        (("kv:int8", "tree"), 0, "int8"),
    ],
    ids=str,
)
def test_open_takes_the_smallest_graph_that_meets_the_needs(
    opener: Opener, needs: tuple[str, ...], rank: int, kv_type: str
) -> None:
    model = opener(SHAPE, needs=needs)
    card = model.card
    assert (card.lora_rank, card.kv_type) == (rank, kv_type)
    assert card.lora_modules == (LORA_MODULES if rank else ())


@pytest.mark.parametrize(
    ("graphs", "needs", "words"),
    [
        (("base",), ("kv:int8",), "offers kv:int8.*base: tree, rows, float32 KV.*--graphs base,kv8"),
        (("base", "kv8"), ("lora",), "offers lora.*--graphs base,lora"),
        (("base", "lora", "kv8"), ("kv:int8", "lora"), "offers kv:int8 and lora.*no one graph"),
        (("kv8",), (), "offers float32 KV"),
        (("base",), ("kv:float16",), "offers kv:float16.*base: tree, rows, float32 KV: use the default"),
    ],
    ids=str,
)
def test_open_refuses_needs_that_no_graph_offers(
    opener: Opener, graphs: tuple[str, ...], needs: tuple[str, ...], words: str
) -> None:
    entry, budget = opener.entry(SHAPE), Budget()
    entry = replace(entry, graphs={name: graph for name, graph in entry.graphs.items() if name in graphs})
    with pytest.raises(CapabilityError, match=words):
        open_entry(entry, opener.root(SHAPE), budget=budget, needs=needs)
    assert budget.leases == ()


def test_open_takes_the_smaller_file_of_equal_graphs(opener: Opener) -> None:
    entry, root = opener.entry(SHAPE), opener.root(SHAPE)
    big = root / "big.onnx"
    big.write_bytes((root / "base.onnx").read_bytes() + b"\0")  # would not open
    graphs = {"big": replace(entry.graphs["base"], file="big.onnx"), **entry.graphs}
    open_entry(replace(entry, graphs=graphs), root, budget=Budget()).close()
    big.unlink()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("base", {"kv_type": "int8"}, "stores keys as"),
        ("base", {"capabilities": ("tree", "rows", "lora"), "lora_rank": 8}, "has no adapter inputs"),
    ],
    ids=str,
)
def test_open_refuses_a_graph_that_differs_from_the_manifest(
    opener: Opener, name: str, change: dict[str, object], words: str
) -> None:
    entry = opener.entry(SHAPE)
    graph = replace(entry.graphs[name], **change)  # type: ignore[arg-type]
    needs = ("kv:int8",) if graph.kv_type == "int8" else ()
    with pytest.raises(ManifestError, match=words):
        open_entry(replace(entry, graphs={name: graph}), opener.root(SHAPE), budget=Budget(), needs=needs)


def test_rows_of_a_long_pass_are_in_the_requested_order(opener: Opener) -> None:
    model = opener(SHAPE)
    tokens, rows = TOKENS * 8, [479, 3, 260]
    output = model.forward(tokens, model.new_state(480), rows=rows)
    assert_close(output.logits, ToyNumpy(SHAPE).logits(tokens)[rows])


def test_logits_are_leased(opener: Opener) -> None:
    budget = Budget()
    model = opener(SHAPE, budget=budget)
    model.forward([1, 2, 3], model.new_state(8), rows="all")
    assert [lease.nbytes for lease in budget.leases if lease.name == "logits:target"] == [3 * 128 * 4]


def test_int8_cache_rounds_per_channel(opener: Opener, shape: ToyShape) -> None:
    model = opener(shape, needs=("kv:int8",))
    found = read(model)
    expected = ToyNumpy(shape, int8_cache=True).logits(TOKENS)
    exact = ToyNumpy(shape).logits(TOKENS)
    rounding = np.abs(expected - exact).mean()
    assert rounding > 1e-3
    assert np.abs(found - expected).mean() < rounding / 20  # a value near a boundary may round the other way


def test_scales_of_8_bit_keys_are_those_of_their_channels_in_every_layout(opener: Opener) -> None:
    """Our attention stores keys in tiles, the engine's by slot."""
    prompts, ends = [TOKENS, TOKENS[:21]], range(SHAPE.rows)
    model = opener(SHAPE)
    found = calibrate_scales(model, prompts, ends=ends)
    model.close()
    with engine_kernels():
        model = opener(SHAPE)
    np.testing.assert_allclose(found, calibrate_scales(model, prompts, ends=ends), rtol=1e-4)


@pytest.mark.usefixtures("engine_kernels")
def test_int8_state_is_planned_at_its_size(opener: Opener) -> None:
    nbytes = []
    for needs in ((), ("kv:int8",)):
        model = opener(SHAPE, needs=needs)
        nbytes.append(model.new_state(100).nbytes)
        model.close()
    assert nbytes[0] - nbytes[1] == 100 * 2 * 2 * 2 * 16 * 3


def test_int8_tree_in_two_passes_equals_its_chains(opener: Opener, shape: ToyShape) -> None:
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


def test_a_graph_of_fixed_shapes_is_only_chosen_on_request(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "base.onnx").write_bytes(b"larger")
    (tmp_path / "static-8.onnx").write_bytes(b"")
    base = Graph("base.onnx", ("input_ids",), ("logits",), ("tree", "rows"))
    static = replace(base, file="static-8.onnx", capabilities=("tree", "rows", "static"), width=8, slots=64)
    entry = replace(opener.entry(SHAPE), graphs={"base": base, "static-8": static})
    assert choose_graph(entry, tmp_path, name="target", needs=()) == base
    assert choose_graph(entry, tmp_path, name="target", needs=("tree",)) == base
    assert choose_graph(entry, tmp_path, name="target", needs=("static",)) == static
    with pytest.raises(CapabilityError, match="use --drafter model"):
        choose_graph(replace(entry, graphs={"base": base}), tmp_path, name="trim", needs=("static",))
    with pytest.raises(CapabilityError, match="no graph that offers static"):
        choose_graph(replace(entry, graphs={"base": base}), tmp_path, name="target", needs=("static",))
