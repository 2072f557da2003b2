"""The ONNX reader and writer of this project, against the onnx package, onnxruntime and damaged bytes."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node, RawAttribute
from edgedecode.onnx_format.tensor import ExternalData, Tensor

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.contract.toy_graph import ToyGraph, ToyShape  # noqa: E402

DEMO = Path(__file__).parents[2] / "edgedecode/packs/demo"
GRAPHS = sorted(DEMO.rglob("*.onnx"))
TOY = ToyGraph(ToyShape(bits=4, layers=1)).build().SerializeToString()
OPSET = [onnx.OperatorSetIdProto(version=21)]
NUMBERS = {
    TensorProto.FLOAT: [1.5, -2.0, float("inf")],
    TensorProto.DOUBLE: [1.5, -2e300],
    TensorProto.INT64: [1, -2, 1 << 62],
    TensorProto.INT32: [1, -2, 1 << 30],
    TensorProto.INT8: [1, -2, -128],
    TensorProto.UINT8: [1, 255],
    TensorProto.INT16: [-1, 300],
    TensorProto.UINT32: [1, (1 << 32) - 1],
    TensorProto.UINT64: [1, (1 << 64) - 1],
    TensorProto.BOOL: [True, False],
    TensorProto.FLOAT16: [0.5, -3.0],
}


def message(data: bytes) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(data)


def again(model: onnx.ModelProto) -> onnx.ModelProto:
    return message(GraphFile.parse(model.SerializeToString()).serialize())


def small_model(*nodes: onnx.NodeProto, **options: object) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy")
    return helper.make_model(
        helper.make_graph(list(nodes), "small", [x], [y], **options), ir_version=10, opset_imports=OPSET
    )


def run(data: bytes, *, x: np.ndarray) -> np.ndarray:
    engine = pytest.importorskip("onnxruntime")
    return engine.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("path", GRAPHS, ids=[f"{path.parent.name}-{path.stem}" for path in GRAPHS])
def test_graph_file_round_trips_the_bundled_graphs(path: Path) -> None:
    data = path.read_bytes()
    assert message(GraphFile.parse(data).serialize()) == message(data)


@pytest.mark.parametrize("variant", ["base", "lora", "kv8"])
@pytest.mark.parametrize("bits", [4, 32])
def test_graph_file_round_trips_toy_graphs(variant: str, bits: int) -> None:
    model = ToyGraph(ToyShape(bits=bits), variant).build()
    assert again(model) == model


def test_graph_file_round_trips_content_that_it_does_not_model() -> None:
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["inner"])], "branch", [], [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch, doc_string="a choice")
    node.overload = "o"
    texts = helper.make_node(
        "Any",
        ["x", ""],
        ["z"],
        domain="own",
        words=["a", "b"],
        word="w",
        none=helper.make_tensor("none", TensorProto.FLOAT, [0], []),
    )
    texts.attribute.append(helper.make_attribute("empty", [], attr_type=onnx.AttributeProto.INTS))
    reference = onnx.AttributeProto(name="mine", ref_attr_name="theirs", type=onnx.AttributeProto.FLOAT)
    texts.attribute.append(reference)
    model = small_model(node, texts, doc_string="documented")
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"\xff"]))
    model.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    model.graph.input.append(helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, [1]))
    named = helper.make_tensor_value_info("named", TensorProto.FLOAT, [1], shape_denotation=["BATCH"])
    model.graph.input.append(named)
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [], [helper.make_opsetid("", 21)]))
    model.producer_name, model.model_version = "someone", -1
    helper.set_model_props(model, {"key": "value", "empty": ""})
    assert again(model) == model
    file = GraphFile.parse(model.SerializeToString())
    assert isinstance(file.nodes[0].attributes["then_branch"], RawAttribute)
    assert file.nodes[1].attributes["word"] == b"w"
    assert file.nodes[1].inputs == ["x", ""]
    assert file.metadata == {"key": "value", "empty": ""}
    assert [value.dims for value in file.inputs] == [("N", 2), None, (1,)]


@pytest.mark.parametrize("kind", NUMBERS, ids=TensorProto.DataType.Name)
def test_tensor_converts_typed_data_to_raw_bytes(kind: int) -> None:
    tensor = helper.make_tensor("t", kind, [len(NUMBERS[kind])], NUMBERS[kind])
    assert not tensor.raw_data
    read = Tensor.parse(memoryview(tensor.SerializeToString()))
    assert read.raw == numpy_helper.to_array(tensor).tobytes()
    written = TensorProto.FromString(b"".join(replace(read, name="u").fields()))
    assert np.array_equal(numpy_helper.to_array(written), numpy_helper.to_array(tensor))


def test_node_attributes_have_the_types_of_onnx() -> None:
    values = {"i": -3, "f": 0.5, "s": b"text", "ints": [1, -2], "floats": [1.0, 2.5]}
    file = GraphFile.parse(small_model(helper.make_node("Any", ["x"], ["y"], **values)).SerializeToString())
    assert file.nodes[0].attributes == values
    file.nodes.append(Node("Copy", "", "copy", ["x"], ["z"], dict(values)))
    node = message(file.serialize()).graph.node[1]
    assert {a.name: helper.get_attribute_value(a) for a in node.attribute} == values


def test_graph_file_edits_are_read_by_onnx_and_onnxruntime(tmp_path: Path) -> None:
    model = small_model(helper.make_node("Mul", ["x", "w"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2, 3]), "w"))
    x = np.float32([[1, 2], [3, 4]])
    file = GraphFile.parse(model.SerializeToString())
    del file.inputs[1]
    assert np.array_equal(run(file.serialize(), x=x), x * np.float32([2, 3]))

    file.nodes[0] = replace(file.nodes[0], op_type="Sub", name="less")
    file.initializers["w"] = replace(file.initializers["w"], raw=np.float32([1, 1]).tobytes())
    file.inputs[0] = replace(file.inputs[0], dims=[2, None])
    assert np.array_equal(run(file.serialize(), x=x), x - 1)

    (tmp_path / "w.bin").write_bytes(bytes(64) + np.float32([5, 6]).tobytes())
    file.nodes.append(Node("Add", inputs=["less", "far"], outputs=["y"]))
    file.nodes[0].outputs = ["less"]
    file.initializers["far"] = Tensor("far", 1, (2,), external=ExternalData("w.bin", 64, 8))
    file.opset["com.example"] = 3
    file.outputs.append(ValueInfo("less", 1, ["N", 2]))
    (tmp_path / "g.onnx").write_bytes(file.serialize())
    loaded = onnx.load(tmp_path / "g.onnx")
    onnx.checker.check_model(loaded)
    assert [opset.domain for opset in loaded.opset_import] == ["", "com.example"]
    engine = pytest.importorskip("onnxruntime")
    y, less = engine.InferenceSession(str(tmp_path / "g.onnx"), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.array_equal(less, x - 1)
    assert np.array_equal(y, x - 1 + np.float32([5, 6]))


def test_tensor_reads_external_data_as_written_by_onnx() -> None:
    tensor = TensorProto(name="t", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "a/b.bin", "offset": "4096", "length": "12", "checksum": "abc"}.items():
        tensor.external_data.add(key=key, value=value)
    read = Tensor.parse(memoryview(tensor.SerializeToString()))
    assert read.external == ExternalData("a/b.bin", 4096, 12, {"checksum": "abc"})
    assert read.raw is None
    assert TensorProto.FromString(b"".join(replace(read, name="t").fields())) == tensor


def test_parse_does_not_loop_over_bytes() -> None:
    model = small_model(helper.make_node("Mul", ["x", "w"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((5000, 1000), np.float32), "w"))
    data = model.SerializeToString()
    lines = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        again = GraphFile.parse(data).serialize()
    finally:
        sys.settrace(before)
    assert again == data
    assert 0 < lines < 10_000  # a loop over the 20 MB would take millions


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds one graph, this one 0"),
        (b"\x3a\x00\x3a\x00", "holds one graph, this one 2"),
        (b"\x3a\xff\xff\xff\xff\x0f\x01", "field 7 is cut off"),
        (b"\x3a" + b"\xff" * 12, "cut off or too long"),
        (b"\x3b", "unknown wire type 3"),
        (b"\x00\x01", "a field has the number 0"),
        (b"\x38\x01", "field 7 has wire type 0"),
        (b"\x3a\x04\x0a\x02\x0a\x00" + b"\x0a\xff", "cut off"),
        (b"\x3a\x05\x0a\x03\x0a\x01\xff", "field 1 is not UTF-8"),
        (b"\x3a\x08\x2a\x02\x42\x00\x2a\x02\x42\x00", "appears twice"),
        (b"\x3a\x04\x2a\x02\x70\x01", "its file is not named"),
    ],
)
def test_parse_refuses_invalid_bytes_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GraphFile.parse(data)


@given(cut=st.integers(0, len(TOY)))
@settings(max_examples=150, deadline=None)
def test_parse_of_truncated_bytes_gives_a_graph_or_an_error(cut: int) -> None:
    parse_and_write(TOY[:cut])


@given(changes=st.lists(st.tuples(st.integers(0, len(TOY) - 1), st.integers(0, 255)), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_parse_of_changed_bytes_gives_a_graph_or_an_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(TOY)
    for place, value in changes:
        data[place] = value
    parse_and_write(bytes(data))


@given(data=st.binary(max_size=200), wrap=st.sampled_from(((), (7,), (7, 1), (7, 5), (7, 11), (7, 1, 5), (8,), (14,))))
@settings(max_examples=200, deadline=None)
def test_parse_of_any_bytes_at_any_depth_gives_a_graph_or_an_error(data: bytes, wrap: tuple[int, ...]) -> None:
    for number in reversed(wrap):
        length = len(data)
        size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
        data = bytes([number << 3 | 2]) + size + data
    parse_and_write(data)


def parse_and_write(data: bytes) -> None:
    try:
        file = GraphFile.parse(data)
    except ValueError as error:
        assert 0 < len(str(error)) < 200  # noqa: PT017  (a graph is a valid result too)
        return
    written = file.serialize()
    assert GraphFile.parse(written).serialize() == written
