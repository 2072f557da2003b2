"""Graph files with hostile tensors, nodes and bytes but valid digests, which the engine would open natively."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import ExternalData, Tensor

from .hostile import TEXTS
from .packs import answer_words, content_of, write_pack
from .running import BUDGET_NBYTES, Fuzz, fuzzed

GRAPH = "draft/base.onnx"
NODES = ("Loop", "If", "Scan", "PyOp", "ConstantOfShape", "Range", "Expand", "Tile", "Pad", "Identity", "MatMulNBits")
BOMBS = ("", "ConstantOfShape", "Expand", "Range", "Tile")
DOMAINS = ("", "com.microsoft", "ai.onnx.ml", "evil", "edgedecode", "com.microsoft.nchwc")
LOCATIONS = st.one_of(
    st.sampled_from(
        [
            *("/etc/hostname", "../tokenizer.json", "../../outside.bin", "./weights.bin"),
            *("weights.bin/../weights.bin", "*/_ORT_MEM_ADDR_/*", ".hidden.bin", "base.onnx", "missing.bin", "", "."),
            *("/dev/zero", "/proc/self/mem"),
        ]
    ),
    TEXTS.map(lambda text: text.replace("\ud800", "\ufffd")),  # protobuf strings cannot contain it
)


@dataclass(frozen=True)
class External:
    """Change the location of one tensor's bytes; the tensor is given by its index among the external ones."""

    index: int
    location: str | None = None
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Claim:
    """Change one tensor's claimed sizes or type."""

    index: int
    dims: tuple[int, ...] | None = None
    kind: int | None = None


@dataclass(frozen=True)
class Operator:
    """Change one node's operator, an attribute or an input."""

    index: int
    name: str | None = None
    domain: str | None = None
    attribute: int | None = None
    reads: str | None = None


@dataclass(frozen=True)
class Bomb:
    """Add an operator with a huge output, whose largest number is added to the logits; none: a tensor claims them."""

    kind: str
    size: int


@dataclass(frozen=True)
class Shared:
    """Add tensors that share the bytes of one, each converted and its largest number added to the logits."""

    index: int
    count: int


@dataclass(frozen=True)
class Garbled:
    """Replace bytes at a thousandth of the file; end: the file ends after them."""

    start: int
    content: bytes
    end: bool = False


Change = External | Claim | Operator | Bomb | Shared | Garbled
PLACES = st.integers(0, 40)
SIZES = st.lists(st.one_of(st.sampled_from([0, 1, -1, 2**31, 2**40, 2**62]), st.integers(0, 70_000)), max_size=3)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
CHANGES = st.one_of(
    st.builds(External, PLACES, location=LOCATIONS),
    st.builds(External, PLACES, offset=st.integers(0, 2**63), length=st.none() | st.integers(0, 2**63)),
    st.builds(Claim, PLACES, dims=SIZES.map(tuple)),
    st.builds(Claim, PLACES, kind=st.integers(-1, 40)),
    st.builds(Operator, PLACES, name=st.sampled_from(NODES), domain=st.sampled_from(DOMAINS) | st.none()),
    st.builds(Operator, PLACES, attribute=NUMBERS),
    st.builds(Operator, PLACES, reads=st.sampled_from(["", "input_ids", "logits", "nowhere", "attention_bias"])),
    st.builds(Bomb, st.sampled_from(BOMBS), st.integers(20_000_000, 400_000_000)),
    st.builds(Shared, PLACES, st.integers(1, 60)),
    st.builds(Garbled, st.integers(0, 999), st.binary(min_size=1, max_size=8), st.booleans()),
)


def graph(changes: Sequence[Change]) -> bytes:
    """Return the valid pack's graph with the changes."""
    file = GraphFile.parse(content_of(GRAPH))
    for change in changes:
        if not isinstance(change, Garbled):
            _apply(file, change)
    data = file.serialize()
    for change in changes:
        if isinstance(change, Garbled):
            start = len(data) * change.start // 1000
            rest = b"" if change.end else data[start + len(change.content) :]
            data = data[:start] + change.content + rest
    return data


def _apply(file: GraphFile, change: External | Claim | Operator | Bomb | Shared) -> None:
    if isinstance(change, Bomb):
        _add_bomb(file, change)
    elif isinstance(change, Shared):
        _share(file, change)
    elif isinstance(change, Operator):
        _change_node(file.nodes[change.index % len(file.nodes)], change)
    else:
        outside = isinstance(change, External)
        names = [name for name, tensor in file.initializers.items() if tensor.external is not None or not outside]
        name = names[change.index % len(names)]
        file.initializers[name] = _changed(file.initializers[name], change)


def _changed(tensor: Tensor, change: External | Claim) -> Tensor:
    if isinstance(change, Claim):
        dims = tensor.dims if change.dims is None else change.dims
        return replace(tensor, dims=dims, data_type=tensor.data_type if change.kind is None else change.kind)
    held = tensor.external
    where = ExternalData(
        held.location if change.location is None else change.location,
        held.offset if change.offset is None else change.offset,
        held.length if change.length is None else change.length,
    )
    return replace(tensor, external=where)


def _change_node(node: Node, change: Operator) -> None:
    node.op_type = change.name or node.op_type
    node.domain = node.domain if change.domain is None else change.domain
    if change.attribute is not None and (numbers := [n for n, v in node.attributes.items() if isinstance(v, int)]):
        node.attributes[numbers[0]] = change.attribute
    if change.reads is not None and node.inputs:
        node.inputs[0] = change.reads


def _add_bomb(file: GraphFile, bomb: Bomb) -> None:
    for name, value in (("zero", 0), ("one", 1), ("size", bomb.size)):
        dims = () if bomb.kind == "Range" else (1,)
        file.initializers[name] = Tensor(name, 7, dims, raw=value.to_bytes(8, "little"))
    raw, bias = _reopened(file)
    if not bomb.kind:
        file.initializers["bomb"] = Tensor("bomb", 7, (bomb.size,), raw=b"")
    else:
        inputs = {"Expand": ["row", "size"], "Range": ["zero", "size", "one"], "Tile": ["one", "size"]}
        file.nodes.append(Node("ReduceMax", inputs=[raw], outputs=["row/one"]))
        file.nodes.append(Node("Reshape", inputs=["row/one", "one"], outputs=["row"]))
        file.nodes.append(Node(bomb.kind, inputs=inputs.get(bomb.kind, ["size"]), outputs=["bomb"]))
    _add_largest(file, "bomb", bias)
    file.nodes.append(Node("Add", inputs=[raw, bias], outputs=["logits"]))


def _share(file: GraphFile, shared: Shared) -> None:
    names = [name for name, tensor in file.initializers.items() if tensor.external is not None]
    first = file.initializers[names[shared.index % len(names)]]
    value, _ = _reopened(file)
    for number in range(shared.count):
        name, following = f"shared.{number}", f"logits.{number}" if number + 1 < shared.count else "logits"
        file.initializers[name] = replace(first, name=name)
        _add_largest(file, name, f"{name}/bias")
        file.nodes.append(Node("Add", inputs=[value, f"{name}/bias"], outputs=[following]))
        value = following


def _reopened(file: GraphFile) -> tuple[str, str]:
    """Return the names of the original logits and of a value to add to them."""
    name = f"logits/{len(file.nodes)}"
    for node in file.nodes:
        node.outputs[:] = [name if output == "logits" else output for output in node.outputs]
    return name, f"{name}/bias"


def _add_largest(file: GraphFile, name: str, result: str) -> None:
    file.nodes.append(Node("Cast", inputs=[name], outputs=[f"{name}/float"], attributes={"to": 1}))
    file.nodes.append(Node("ReduceMax", inputs=[f"{name}/float"], outputs=[result], attributes={"keepdims": 0}))


@fuzzed("graphs")
@given(changes=st.lists(CHANGES, min_size=1, max_size=2))
def test_generate_with_a_hostile_graph_ends_in_one_line_or_an_answer(fuzz: Fuzz, changes: Sequence[Change]) -> None:
    pack = write_pack(fuzz.fresh() / "pack", changed={GRAPH: graph(changes)})
    (fuzz.place / "outside.bin").write_bytes(bytes(4096))
    fuzz.check(*answer_words(pack), limit=BUDGET_NBYTES)
