"""Rewriting of a graph: the operators replaced by ours, and those left to the engine."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import edgedecode
from edgedecode.errors import ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import RawAttribute
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.graph_needs import graph_sizes, measured_sizes
from edgedecode.runtimes.onnx.kernels import rewriting, serving
from edgedecode.runtimes.onnx.kernels.products import DOMAIN, NotServed, WeightsFile
from edgedecode.runtimes.onnx.kernels.rewriting import BLOCK, PICKS, Rewritten, rewrite
from edgedecode.runtimes.onnx.kernels.trial import tried

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")


@pytest.mark.parametrize("mixed", [False, True])
def test_rewrite_shares_the_engines_threads_where_the_engine_has_products(mixed: bool) -> None:
    file = draft_graph()
    if mixed:
        first = next(node for node in file.nodes if node.op_type == "MatMulNBits")
        first.attributes["accuracy_level"] = 1
    found = rewritten(file)
    nodes = [node for node in GraphFile.parse(found.data).nodes if node.domain == DOMAIN]
    assert {node.op_type for node in nodes} >= {"RowsProduct", "TreeAttention"}
    assert {node.attributes.get("engines_pool", 0) for node in nodes} == {int(mixed)}


def test_load_refuses_a_pack_whose_graph_names_our_operators(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    manifest = json.loads((pack / "edgedecode.json").read_text(encoding="utf-8"))
    for role in ("target", "draft"):
        for path in (pack / role).glob("*.onnx"):
            file = GraphFile.parse(path.read_bytes())
            product = next(node for node in file.nodes if node.op_type == "MatMulNBits")
            product.op_type, product.domain = "RowsProduct", DOMAIN
            file.opset[DOMAIN] = 1
            path.write_bytes(file.serialize())
            entry = manifest["files"][f"{role}/{path.name}"]
            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            entry["nbytes"] = path.stat().st_size
    (pack / "edgedecode.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ManifestError, match="'RowsProduct' is of the unknown domain 'edgedecode'"):
        edgedecode.load(pack, runtime="onnx")


def draft_graph() -> GraphFile:
    return GraphFile.parse((BUNDLED_PACK / "draft" / "base.onnx").read_bytes())


def rewritten(file: GraphFile) -> Rewritten:
    assert LIBRARY is not None
    return rewrite(file, LIBRARY, WeightsFile(BUNDLED_PACK / "draft" / "weights.bin"), window=0, threads=1)


def test_rewrite_stores_one_array_with_two_sets_of_scales_as_two_matrices() -> None:
    file = draft_graph()
    first, second = [node for node in file.nodes if "gate_proj" in node.name and node.op_type == "MatMulNBits"]
    second.inputs[1] = first.inputs[1]
    found, plain = rewritten(file), rewritten(draft_graph())
    assert len(found.stored) == len(plain.stored)


def test_rewrite_leaves_weights_of_another_file_to_the_engine() -> None:
    file = draft_graph()
    name = next(node.inputs[1] for node in file.nodes if node.op_type == "MatMulNBits")
    tensor = file.initializers[name]
    assert tensor.external is not None
    file.initializers[name] = replace(tensor, external=replace(tensor.external, location="other.bin"))
    found = rewritten(file)
    assert not found.row_invariant
    assert found.unserved == {"weights whose size differs from the node's": 1}


@pytest.mark.parametrize("where", ["opset", "node", "inner graph", "function"])
def test_rewrite_leaves_a_graph_that_names_our_operators_unchanged(where: str) -> None:
    file = draft_graph()
    if where == "opset":
        file.opset[DOMAIN] = 1
    elif where == "node":
        file.nodes[0].domain = DOMAIN
    elif where == "inner graph":
        file.nodes[0].attributes["then_branch"] = RawAttribute(b"then_branch edgedecode")
    else:
        file.model_rest.append((25, b""))
    with pytest.raises(NotServed, match="our operators"):
        rewritten(file)


@pytest.mark.parametrize("attribute", ["local_window_size", "smooth_softmax"])
def test_rewrite_leaves_attention_with_other_semantics_to_the_engine(attribute: str) -> None:
    file = draft_graph()
    for node in file.nodes:
        if node.op_type == "GroupQueryAttention":
            node.attributes[attribute] = 4
    with pytest.raises(NotServed, match="a window or sinks"):
        rewritten(file)


@pytest.mark.parametrize("inputs", [("", "", "picks"), ("k", "v", ""), ("k", "", "picks")])
def test_rewrite_leaves_a_block_that_our_kernels_lack_to_the_engine(inputs: tuple[str, str, str]) -> None:
    """A block has keys and values of its own, and picked rows."""
    file = draft_graph()
    for node in file.nodes:
        if node.op_type == "GroupQueryAttention":
            node.inputs = [*node.inputs, *[""] * (PICKS + 1 - len(node.inputs))]
            node.inputs[1], node.inputs[2], node.inputs[PICKS] = inputs
            node.attributes[BLOCK] = 1
    with pytest.raises(NotServed, match="has no positions, or other inputs"):
        rewritten(file)


@pytest.mark.parametrize("size", [0, -16, 8, 528, None, "D"])
def test_rewrite_leaves_attention_of_other_sizes_to_the_engine(size: int | str | None) -> None:
    file = draft_graph()
    file.inputs = [
        replace(value, dims=[*value.dims[:-1], size]) if value.dims and "past" in value.name else value
        for value in file.inputs
    ]
    with pytest.raises(NotServed, match=f"its head size is {size}"):
        rewritten(file)


def test_rewrite_of_a_damaged_node_gives_a_graph_or_a_reason() -> None:
    """Nodes with fewer inputs or outputs, none, one more, or with other sizes, as a hostile pack may have them."""
    seen = {True: 0, False: 0}
    for index, node in enumerate(draft_graph().nodes):
        if node.op_type in {each.op_type for each in draft_graph().nodes[:index]}:
            continue
        changed = [replace(node, inputs=node.inputs[:count]) for count in range(len(node.inputs))]
        changed += [replace(node, inputs=[*node.inputs, "more"]), replace(node, outputs=[])]
        changed += [replace(node, inputs=[""] * len(node.inputs)), replace(node, inputs=node.inputs[:1] * 3)]
        for name in node.attributes:
            changed += [replace(node, attributes={**node.attributes, name: value}) for value in (0, -64, 2**62, b"x")]
            changed.append(
                replace(node, attributes={each: node.attributes[each] for each in {*node.attributes} - {name}})
            )
        for each in changed:
            file = draft_graph()
            file.nodes[index] = each
            served = True
            try:
                rewritten(file)
            except NotServed:
                served = False
            seen[served] += 1
    assert min(seen.values()) > 10, seen


def test_an_error_in_our_own_code_is_not_taken_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = Mock(side_effect=TypeError("our own"))
    monkeypatch.setattr(serving, "rewrite", fails)
    with pytest.raises(TypeError, match="our own"):
        edgedecode.load(BUNDLED_PACK, runtime="onnx")
    monkeypatch.undo()
    monkeypatch.setattr(serving.GraphFile, "parse", fails)
    entry = Manifest.load(BUNDLED_PACK).models["draft"]
    with pytest.raises(TypeError, match="our own"):
        serving.explain(entry, BUNDLED_PACK, name="base", graph=entry.graphs["base"])


def test_a_graph_that_cannot_be_read_is_left_to_the_engine(tmp_path: Path) -> None:
    entry = Manifest.load(BUNDLED_PACK).models["draft"]
    for graph, reason in (("absent", "No such file"), (entry.weights, "field")):
        found = serving.explain(entry, BUNDLED_PACK, name="base", graph=replace(entry.graphs["base"], file=graph))
        assert found.kernels == ""
        assert reason in found.reason


def with_levels(*levels: int | None) -> GraphFile:
    """Return the draft's graph with these accuracy levels in its products in turn; None: without the attribute."""
    file = draft_graph()
    products = [node for node in file.nodes if node.op_type == "MatMulNBits"]
    for index, node in enumerate(products):
        level = levels[index % len(levels)]
        node.attributes.pop("accuracy_level")
        if level is not None:
            node.attributes["accuracy_level"] = level
    return file


@pytest.mark.parametrize("level", [None, 0, 2, 3])
def test_rewrite_gives_products_that_forbid_8_bits_16_from_the_same_tiles(level: int | None) -> None:
    found, plain = rewritten(with_levels(level)), rewritten(draft_graph())
    assert found.row_invariant
    assert found.stored.keys() == plain.stored.keys()
    planes = [node.attributes["planes"] for node in GraphFile.parse(found.data).nodes if node.op_type == "RowsProduct"]
    before = [node.attributes["planes"] for node in GraphFile.parse(plain.data).nodes if node.op_type == "RowsProduct"]
    assert (set(planes), set(before)) == ({2}, {1})
    assert len(planes) == len(before)


def test_rewrite_stores_a_matrix_used_at_two_widths_once() -> None:
    file = with_levels(2, 4)
    first, second = [node for node in file.nodes if "gate_proj" in node.name and node.op_type == "MatMulNBits"]
    second.inputs[1:3] = first.inputs[1:3]
    first.attributes["accuracy_level"], second.attributes["accuracy_level"] = 2, 4
    found, plain = rewritten(file), rewritten(draft_graph())
    assert len(found.stored) == len(plain.stored) - 1


def test_rewrite_leaves_products_that_request_float32_to_the_engine() -> None:
    found = rewritten(with_levels(1))
    assert found.left.keys() == {"MatMulNBits"}
    assert not found.unserved


def test_rewrite_reads_a_tied_embedding_from_the_heads_tiles() -> None:
    """The second copy of the array is dropped, and the plan shrinks by its size."""
    before, found = draft_graph(), rewritten(draft_graph())
    after = GraphFile.parse(found.data)
    (gather,) = [node for node in before.nodes if node.op_type == "GatherBlockQuantized"]
    (rows,) = [node for node in after.nodes if node.op_type == "TileRows"]
    assert (rows.inputs[0], rows.outputs) == ("input_ids", gather.outputs)
    assert not {gather.inputs[0], gather.inputs[2]} & after.initializers.keys()
    table = before.initializers[gather.inputs[0]]
    saved = graph_sizes(before, hidden=128).tables_nbytes - graph_sizes(after, hidden=128).tables_nbytes
    assert saved > (table.external.length or 0) > 0


@pytest.mark.parametrize("change", ["zero points", "another block", "computed ids", "another array"])
def test_rewrite_leaves_an_embedding_that_is_not_the_heads_matrix_to_the_engine(change: str) -> None:
    file = draft_graph()
    (gather,) = [node for node in file.nodes if node.op_type == "GatherBlockQuantized"]
    if change == "zero points":
        gather.inputs.append(gather.inputs[0])
    elif change == "another block":
        gather.attributes["block_size"] = 64
    elif change == "computed ids":
        gather.inputs[1] = "ids.computed"
    else:
        table = file.initializers[gather.inputs[0]]
        assert table.external is not None
        file.initializers[gather.inputs[0]] = replace(table, external=replace(table.external, offset=64))
    found = rewritten(file)
    kinds = [node.op_type for node in GraphFile.parse(found.data).nodes]
    assert ("GatherBlockQuantized" in kinds, "TileRows" in kinds) == (True, False)
    assert found.row_invariant


def test_rewrite_of_a_tied_embedding_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, logits, weights = list(range(5, 305)), list[bytes](), list[int]()
    for tied in (True, False):
        if not tied:
            monkeypatch.setattr(rewriting._Rewriting, "embeddings", lambda self: None)
        with edgedecode.load(runtime="onnx") as pair:
            state = pair.target.new_state(320, rows=4)
            logits.append(pair.target.forward(tokens, state, rows=[0, 7, 150, 299]).logits.tobytes())
            weights += [lease.nbytes for lease in pair.budget.leases if lease.name == "weights:target"]
            state.close()
    assert logits[0] == logits[1]
    assert weights[1] - weights[0] > 2_000_000


def test_graph_sizes_include_matrices_that_the_engine_unpacks() -> None:
    file = with_levels(2)
    (head,) = [node for node in file.nodes if node.op_type == "MatMulNBits" and node.outputs == ["logits"]]
    sizes = head.attributes["N"], head.attributes["K"]
    assert sizes == (8192, 128)
    assert graph_sizes(file, hidden=128).unpacked_nbytes == 4 * 8192 * 128
    assert graph_sizes(draft_graph(), hidden=128).unpacked_nbytes == 0


def test_measured_sizes_are_cached_by_content_and_width() -> None:
    files = [draft_graph(), with_levels(2)]
    for _ in range(2):
        for file in files:
            for hidden in (128, 256):
                assert measured_sizes(file.serialize(), hidden=hidden) == graph_sizes(file, hidden=hidden)
        with pytest.raises((ValueError, IndexError)):
            measured_sizes(b"no graph", hidden=128)
    first, second = (graph_sizes(file, hidden=128) for file in files)
    assert first != second
    assert first != graph_sizes(files[0], hidden=256)


def test_rewrite_moves_the_adapters_matrices_into_the_products() -> None:
    assert LIBRARY is not None
    graph = BUNDLED_PACK / "target" / "lora.onnx"
    before = GraphFile.parse(graph.read_bytes())
    given = {value.name for value in before.inputs if value.name.startswith("lora.")}
    found = rewrite(before, LIBRARY, WeightsFile(graph.with_name("weights.bin")), window=0, threads=1)
    assert found.row_invariant
    nodes = GraphFile.parse(found.data).nodes
    assert not {"FloatProduct", "MatMul"} & {node.op_type for node in nodes}
    products = [node for node in nodes if node.op_type == "RowsProduct"]
    assert {name for node in products for name in node.inputs if name.startswith("lora.")} == given
    layers = {name.split(".")[1] for name in given}
    assert len(products) == 4 * len(layers) + 1  # per layer qkv, o, gate and up, down; and the head
    assert found.narrow_ranks == 3  # query, key and value are one product


@pytest.mark.parametrize("change", ["another input", "a second reader", "another name"])
def test_rewrite_keeps_deltas_of_another_form_as_separate_operators(change: str) -> None:
    assert LIBRARY is not None
    graph = BUNDLED_PACK / "target" / "lora.onnx"
    file = GraphFile.parse(graph.read_bytes())
    narrow = next(node for node in file.nodes if node.name.endswith("o_proj/Narrow"))
    wide = next(node for node in file.nodes if node.inputs[:1] == narrow.outputs[:1])
    if change == "another input":
        other = next(node for node in file.nodes if "qkv" in node.name)
        narrow.inputs[0] = other.outputs[0]
    elif change == "a second reader":
        file.nodes.append(replace(narrow, inputs=[*narrow.outputs, wide.inputs[1]], outputs=["more"], name="more"))
    else:
        wide.inputs[1] = "other"
    found = rewrite(file, LIBRARY, WeightsFile(graph.with_name("weights.bin")), window=0, threads=1)
    kinds = [node.op_type for node in GraphFile.parse(found.data).nodes]
    assert {"FloatProduct", "MatMul"} & set(kinds)
