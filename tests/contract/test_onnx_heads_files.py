"""Opening a graph of several heads: the one that is opened, and one-line errors for files that do not fit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgedecode.decoding.model import HeadedModel
from edgedecode.errors import CapabilityError, ExportError, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.token_map import write_token_ids
from tests.contract.conftest import open_entry
from tests.contract.toy_graph import WEIGHTS, ToyShape, write_toy
from tests.contract.toy_heads import KEPT, MAP, add_heads, open_headed, write_headed

SHAPE = ToyShape(bits=8, graphs=("base", "lora"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelEntry]:
    folder = tmp_path_factory.mktemp("made")
    return folder, write_headed(folder, SHAPE)


@pytest.fixture
def entry(made: tuple[Path, ModelEntry]) -> ModelEntry:
    return made[1]


@pytest.fixture
def pack(made: tuple[Path, ModelEntry], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "pack"))


def refused(entry: ModelEntry, root: Path) -> str:
    """Open the entry, expect a ManifestError of one line, and check that no lease remains."""
    budget = Budget()
    with pytest.raises(ManifestError) as caught:
        open_entry(entry, root, budget=budget, needs=("trim",))
    assert "\n" not in str(caught.value)
    assert budget.leases == ()
    return str(caught.value)


def test_open_takes_the_heads_graph_where_trim_is_needed(entry: ModelEntry, pack: Path) -> None:
    graph = entry.graphs["heads"]
    assert graph.file == "heads.onnx"
    assert graph.capabilities == ("tree", "rows", "trim")
    assert graph.inputs[5:7] == ("rows", "heads")
    assert graph.outputs[:2] == ("logits", "trim_logits")
    plain = open_entry(entry, pack, budget=Budget())
    assert isinstance(plain, HeadedModel)
    assert plain.trimmed is None
    plain.close()
    (pack / "base.onnx").unlink()
    model = open_headed(entry, pack)
    assert model.trimmed is not None
    model.close()


def test_open_ignores_a_third_head_of_an_older_pack(entry: ModelEntry, pack: Path) -> None:
    """The bundled pack's graph has one: a product with rows that come with a pass, here none."""
    graph = onnx.load(pack / "heads.onnx", load_external_data=False)
    (split,) = [node for node in graph.graph.node if node.op_type == "Split"]
    split.output.append("/heads/hidden.P")
    (counts,) = [value for value in graph.graph.input if value.name == "heads"]
    counts.type.tensor_type.shape.dim[0].dim_value = 3
    floats, ids = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    graph.graph.input.extend(
        [
            onnx.helper.make_tensor_value_info("local_rows", floats, ["L", 64]),
            onnx.helper.make_tensor_value_info("local_ids", ids, ["L"]),
        ]
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(128, np.float32), "local_bias"))
    graph.graph.node.extend(
        [
            onnx.helper.make_node("Gemm", ["/heads/hidden.P", "local_rows"], ["local_product"], transB=1),
            onnx.helper.make_node("Gather", ["local_bias", "local_ids"], ["local_added"], axis=-1),
            onnx.helper.make_node("Add", ["local_product", "local_added"], ["local_logits"]),
        ]
    )
    graph.graph.output.append(onnx.helper.make_tensor_value_info("local_logits", floats, ["P", "L"]))
    found = []
    for _ in range(2):
        model = open_headed(entry, pack)
        assert model.trimmed is not None
        state = model.new_state(8)
        whole = model.forward([1, 2, 3], state, rows="all").logits.copy()
        found.append((whole, model.trimmed.forward([4, 5], state, rows="all").logits.copy()))
        model.close()
        onnx.save(graph, pack / "heads.onnx")
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    assert np.abs(found[0][1]).max() > 0


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (("trim",), r"offers trim; it has base: .*: `edgedecode trim PACK` adds one"),
        (("trim", "lora"), r"no one graph offers them together.*: leave out one of them"),
    ],
    ids=str,
)
def test_open_refuses_needs_that_no_graph_offers(
    entry: ModelEntry, pack: Path, needs: tuple[str, ...], words: str
) -> None:
    graphs = {name: graph for name, graph in entry.graphs.items() if name != "heads"}
    with pytest.raises(CapabilityError, match=words):
        open_entry(replace(entry, graphs=graphs), pack, budget=Budget(), needs=needs)


def test_open_refuses_a_token_map_that_does_not_fit(entry: ModelEntry, pack: Path) -> None:
    assert "without a token map" in refused(replace(entry, trim=None), pack)
    more = replace(entry, trim=TrimEntry(size=len(KEPT) + 1, token_ids=MAP))
    assert f"maps {len(KEPT)} rows" in refused(more, pack)
    write_token_ids(pack / MAP, np.append(KEPT, 128))
    assert "from 0 to below 128" in refused(more, pack)
    write_token_ids(pack / MAP, np.append(KEPT[:-1], 128))
    assert "does not fit the draft" in refused(entry, pack)
    (pack / MAP).unlink()
    assert "cannot be read" in refused(entry, pack)


def test_open_refuses_a_token_map_of_another_size_than_the_graph(entry: ModelEntry, pack: Path) -> None:
    write_token_ids(pack / MAP, KEPT[:-1])
    other = replace(entry, trim=TrimEntry(size=len(KEPT) - 1, token_ids=MAP))
    assert f"a trimmed head of {len(KEPT)} rows, its map {len(KEPT) - 1}" in refused(other, pack)


def test_open_refuses_a_graph_without_the_manifests_heads(entry: ModelEntry, pack: Path) -> None:
    shutil.copyfile(pack / "base.onnx", pack / "heads.onnx")
    assert "has no heads, trim_logits" in refused(entry, pack)


def test_open_with_weights_in_another_folder(entry: ModelEntry, pack: Path, tmp_path: Path) -> None:
    together = open_headed(entry, pack)
    found = []
    elsewhere = tmp_path / "elsewhere" / WEIGHTS
    elsewhere.parent.mkdir()
    (pack / WEIGHTS).rename(elsewhere)
    for model in (together, open_headed(replace(entry, weights=str(elsewhere)), pack)):
        trimmed = model.trimmed
        assert trimmed is not None
        found.append(trimmed.forward([1, 2, 3], model.new_state(8), rows="all").logits)
    assert np.array_equal(*found)
    assert add_heads(replace(entry, weights=str(elsewhere)), pack).graphs == entry.graphs


@pytest.mark.parametrize("ids", [[], [3, 2], [3, 3], [-1, 2], [5, 128]], ids=str)
def test_add_heads_refuses_ids_outside_the_vocabulary(entry: ModelEntry, pack: Path, ids: list[int]) -> None:
    (pack / "heads.onnx").unlink()
    with pytest.raises(InputError, match="must ascend, from 0 to below 128"):
        add_heads(entry, pack, ids=np.array(ids, np.int64))
    assert not (pack / "heads.onnx").exists()


@pytest.mark.parametrize(
    ("kind", "attribute", "words"),
    [
        ("MatMulNBits", "bits", "blocks of 32 weights of 2 bits"),
        ("MatMulNBits", "block_size", "blocks of 24 weights of 8 bits in rows of 64"),
    ],
)
def test_add_heads_refuses_heads_of_another_form(
    entry: ModelEntry, pack: Path, kind: str, attribute: str, words: str
) -> None:
    path = pack / "base.onnx"
    graph = onnx.load(path, load_external_data=False)
    head = graph.graph.node[-1]
    assert head.op_type == kind
    (found,) = [each for each in head.attribute if each.name == attribute]
    found.i = {"bits": 2, "block_size": 24}[attribute]
    onnx.save(graph, path)
    with pytest.raises(ExportError, match=words):
        add_heads(entry, pack)


def test_add_heads_refuses_graphs_that_cannot_be_cut(entry: ModelEntry, pack: Path) -> None:
    graph = onnx.load(pack / "base.onnx", load_external_data=False)
    graph.graph.node[-1].op_type, graph.graph.node[-1].domain = "MatMulFloat", "com.example"
    onnx.save(graph, pack / "base.onnx")
    with pytest.raises(ExportError, match="not come from a matrix product"):
        add_heads(entry, pack)
    (pack / "base.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match="is not a valid graph"):
        add_heads(entry, pack)
    with pytest.raises(ExportError, match="the manifest says 130 by 64"):
        add_heads(replace(write_toy(pack, SHAPE), rows=130), pack)


@pytest.mark.parametrize("part", ["head.packed", "head.scales"])
def test_add_heads_refuses_a_head_in_two_files(entry: ModelEntry, pack: Path, part: str) -> None:
    """Only the offset in the second file would be known."""
    graph = onnx.load(pack / "base.onnx", load_external_data=False)
    (tensor,) = [each for each in graph.graph.initializer if each.name == part]
    (location,) = [each for each in tensor.external_data if each.key == "location"]
    location.value = "head.bin"
    onnx.save(graph, pack / "base.onnx")
    shutil.copyfile(pack / WEIGHTS, pack / "head.bin")
    with pytest.raises(ExportError, match="is not stored in the model's weights file"):
        add_heads(entry, pack)


def test_add_heads_refuses_a_head_inside_the_graph_file(entry: ModelEntry, pack: Path) -> None:
    graph = onnx.load(pack / "base.onnx")
    onnx.save(graph, pack / "base.onnx")
    with pytest.raises(ExportError, match="is not stored in the model's weights file"):
        add_heads(entry, pack)
