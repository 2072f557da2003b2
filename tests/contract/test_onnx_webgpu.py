"""WebGPU: trees by slot, windows, a trimmed draft, refusals. The contract suite covers the rest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from tests.contract.conftest import Opener, skip_without
from tests.contract.reference import assert_close
from tests.contract.toy_graph import ToyShape, write_toy
from tests.contract.toy_numpy import ToyNumpy

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.onnx_engine import import_engine
from edgedecode.runtimes.onnx.providers.attention_check import SIZE, attention_graph, right_widths
from edgedecode.runtimes.onnx.providers.kv_cache import HostCache
from edgedecode.runtimes.onnx.providers.webgpu import WebGpuProvider

TOKENS = [int(token) for token in np.random.default_rng(11).integers(0, 128, 60)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]


def test_graph_reads_the_rotation_tables_by_slot(opener: Opener) -> None:
    path = opener.root(ToyShape()) / opener.entry(ToyShape()).graphs["base"].file
    data = WebGpuProvider().rewritten(path)
    assert data is not None
    file = GraphFile.parse(data)
    positions = next(value for value in file.inputs if value.name == "position_ids")
    assert list(positions.dims or ()) == ["T"]
    readers = [node for node in file.nodes if "position_ids" in node.inputs]
    assert [node.op_type for node in readers] == ["Gather", "Gather"]
    made = {name for node in readers for name in node.outputs}
    attention = [node for node in file.nodes if node.op_type == "GroupQueryAttention"]
    assert all(set(node.inputs[7:9]) == made and not node.inputs[9] for node in attention)


def test_graph_that_reads_positions_elsewhere_is_refused(opener: Opener, tmp_path: Path) -> None:
    path = opener.root(ToyShape()) / opener.entry(ToyShape()).graphs["base"].file
    file = GraphFile.parse(path.read_bytes())
    file.nodes.append(Node("Identity", inputs=["position_ids"], outputs=["more"]))
    (tmp_path / "other.onnx").write_bytes(file.serialize())
    with pytest.raises(CapabilityError, match="reads positions besides those of its attention; use --provider cpu"):
        WebGpuProvider().rewritten(tmp_path / "other.onnx")


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("kv8", "its attention has no int8 keys and values: leave out --kv-type, or use --provider cpu"),
        ("lora", "its graphs take no adapters: leave out --adapter, or use --provider cpu"),
    ],
)
def test_graph_that_does_not_run_there_is_refused(opener: Opener, graph: str, words: str) -> None:
    entry = opener.entry(ToyShape(graphs=("base", "lora", "kv8")))
    assert WebGpuProvider().refusal(entry, entry.graphs[graph]) == words
    static = replace(entry.graphs["base"], capabilities=("static",))
    assert "edgedecode's own export only" in WebGpuProvider().refusal(entry, static)
    assert WebGpuProvider().refusal(entry, entry.graphs["base"]) == ""


def processor_check(session: object, *, widths: Sequence[int] = (31, 64)) -> int:
    cache = HostCache(import_engine(), (2, 1, 1, 64, SIZE), kv_type="float32")
    return right_widths(session, cache, widths=widths)


def test_attention_check_accepts_right_attention() -> None:
    session = import_engine().InferenceSession(attention_graph(), providers=["CPUExecutionProvider"])
    assert processor_check(session) == 64


@pytest.mark.parametrize(("wrong_from", "found"), [(32, 31), (64, 31), (65, 64)])
def test_attention_check_finds_widths_that_are_wrong(wrong_from: int, found: int) -> None:
    assert processor_check(Wrong(wrong_from)) == found
    with pytest.raises(CapabilityError, match="the graphics driver computes attention wrongly"):
        processor_check(Wrong(1))


class Wrong:
    """A session that writes nothing useful in passes of so many rows, and of more."""

    def __init__(self, width: int) -> None:
        self._session = import_engine().InferenceSession(attention_graph(), providers=["CPUExecutionProvider"])
        self._width = width

    def io_binding(self) -> object:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: object) -> None:
        self._session.run_with_iobinding(binding)
        mixed = binding.get_outputs()[-1]  # type: ignore[attr-defined]
        if mixed.shape()[1] >= self._width:
            mixed.update_inplace(np.zeros(mixed.shape(), np.float32))


@pytest.mark.parametrize("shape", [ToyShape(window=12), ToyShape(window=12, all_windows=True), ToyShape()], ids=str)
def test_chains_and_trees_are_those_of_numpy(opener: Opener, shape: ToyShape) -> None:
    skip_without("webgpu")
    model = opener(shape, provider="webgpu")
    wanted = ToyNumpy(shape)
    state = model.new_state(80)
    found = [model.forward(TOKENS[:45], state, rows="all").logits.copy()]
    state.keep(range(45))
    found.append(model.forward(TOKENS[45:], state, rows="all").logits.copy())
    assert_close(np.concatenate(found), wanted.logits(TOKENS).astype(np.float32))
    state.keep(range(15))
    state.crop(50)
    tree = TOKENS[::-1][: len(PARENTS)]
    rows = model.forward(tree, state, parents=PARENTS, rows="all").logits.copy()
    path = [0, 2, 4, 9]
    text = TOKENS[:50] + [tree[row] for row in path]
    assert_close(rows[path], wanted.logits(text)[50:].astype(np.float32))
    state.keep(path)
    again = model.forward(TOKENS[:3], state, rows="all").logits
    assert_close(again, wanted.logits(text + TOKENS[:3])[-3:].astype(np.float32))


def test_trimmed_draft_has_the_full_drafts_logits(tmp_path: Path) -> None:
    skip_without("webgpu")
    from tests.contract.test_trimmed import KEPT, trim

    entry = write_toy(tmp_path, ToyShape())
    found = []
    for each in (entry, trim(entry, tmp_path)):
        request = ModelRequest(each, tmp_path, "target", entry.rows, budget=Budget(), provider="webgpu")
        model = OnnxRuntime().open(request)
        found.append(model.forward(TOKENS[:9], model.new_state(20), rows="all").logits.copy())
        model.close()
    assert_close(found[1], found[0][:, KEPT])


def test_adapter_is_refused_with_another_provider_as_the_remedy(opener: Opener) -> None:
    skip_without("webgpu")
    shape = ToyShape(graphs=("base", "lora"))
    entry = opener.entry(shape)
    request = ModelRequest(
        entry, opener.root(shape), "target", entry.rows, budget=Budget(), provider="webgpu", needs=("lora",)
    )
    with pytest.raises(CapabilityError, match="the provider webgpu cannot run the target: its graphs take no adapters"):
        OnnxRuntime().open(request)
