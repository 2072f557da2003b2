"""Merges what follows a product of a rewritten graph into it: a bias, the gate of an MLP, an adapter's delta."""

from collections.abc import Sequence

from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor

from .products import DOMAIN, FLOAT, UINT8

MATRICES = 4
"""Number of a product's inputs before an adapter's matrices: rows, tiles, bias, tiles of a second matrix."""
TILE = 32
"""Columns per tile, of a product's weights and of an adapter's second matrix."""
_SILU, _GELU = 1, 2
_PIECE = 512
"""Inputs per partial sum of an adapter's first product: kPiece in operators.cpp."""


def join_biases(file: GraphFile) -> None:
    """Replace the addition of a bias after a product by an input of that product."""
    outputs = {value.name for value in file.outputs}
    for product in [node for node in file.nodes if node.op_type == "RowsProduct" and len(node.inputs) == 2]:
        users = file.consumers(product.outputs[0])
        if len(users) != 1 or users[0].op_type != "Add" or product.outputs[0] in outputs:
            continue
        (add,) = users
        (bias,) = [name for name in add.inputs if name != product.outputs[0]] or [""]
        tensor = file.initializers.get(bias)
        if tensor is not None and _is_bias(tensor, product):
            product.inputs.append(bias)
            product.outputs = add.outputs
            file.nodes.remove(add)


def join_gates(file: GraphFile) -> None:
    """Replace gate projection, up projection and the activation between them by one product."""
    for final in [node for node in file.nodes if node.op_type == "Mul"]:
        for act, up in (final.inputs, final.inputs[::-1]):
            if _join_gate(file, final, act, up):
                break


def join_deltas(file: GraphFile, *, kv_width: int) -> None:
    """Replace the two products and the addition of each delta after one of our products by inputs of that product,
    which then computes product + (x · first) · second.

    kv_width: outputs of the key projection, for models whose query, key and value projections are one product.
    """
    for wide in [node for node in file.nodes if node.op_type == "MatMul"]:
        narrow, users = file.producer(wide.inputs[0]), file.consumers(wide.outputs[0])
        if narrow is None or narrow.op_type != "MatMul" or [node.op_type for node in users] != ["Add"]:
            continue
        (add,) = users
        (before,) = [name for name in add.inputs if name != wide.outputs[0]] or [""]
        product, matrices = file.producer(before), [narrow.inputs[1], wide.inputs[1]]
        inner = {narrow.outputs[0], wide.outputs[0], before}
        if (
            product is None
            or product.op_type != "RowsProduct"
            or len(product.inputs) > MATRICES
            or product.inputs[0] != narrow.inputs[0]
            or not all(name.startswith("lora.") and name.count(".") >= 2 for name in matrices)
            or any(len(file.consumers(name)) != 1 for name in inner)
            or any(value.name in inner for value in file.outputs)
            or any(value.dims is None for value in file.inputs if value.name in matrices)
        ):
            continue
        from edgedecode.adapters.adapter_parts import part_starts  # late: few graphs take adapters

        columns = product.attributes["columns"]
        assert isinstance(columns, int)
        starts = part_starts(matrices[0].split(".")[2], outputs=columns, kv_width=kv_width)
        if any(start % TILE for start in (*starts, columns)):
            continue
        product.attributes |= dict(zip(("second_part", "third_part"), starts[1:], strict=False))
        product.inputs = [*product.inputs, *[""] * (MATRICES - len(product.inputs)), *matrices]
        product.outputs = add.outputs
        _declare_bytes(file, matrices)
        for node in (narrow, wide, add):
            file.nodes.remove(node)


def narrow_ranks(product: Node) -> int:
    """Return the number of rank-sized partial sums that a product holds per row: one per part and piece of inputs."""
    if product.op_type != "RowsProduct" or len(product.inputs) <= MATRICES:
        return 0
    parts = len(product.inputs[MATRICES::2]) + len({"second_part", "third_part"} & product.attributes.keys())
    inner = product.attributes["inner"]
    assert isinstance(inner, int)
    return -(-inner // _PIECE) * parts


def _declare_bytes(file: GraphFile, names: Sequence[str]) -> None:
    """Declare an adapter's matrices as bytes, [.., .., 2] for float16 or [.., .., 4] for float32."""
    for index, value in enumerate(file.inputs):
        if value.name in names:
            assert value.dims is not None
            file.inputs[index] = ValueInfo(value.name, UINT8, [*value.dims, f"{value.name}.nbytes"])
            empty = tuple(size if isinstance(size, int) else 0 for size in value.dims)
            file.initializers[value.name] = Tensor(value.name, UINT8, (*empty, 2), b"")


def _join_gate(file: GraphFile, final: Node, act: str, up: str) -> bool:
    activation, second = file.producer(act), file.producer(up)
    if activation is None or second is None:
        return False
    removed, gate = [final], 0
    if activation.op_type == "Mul":  # x · sigmoid(x)
        sigmoids = [
            node
            for name in activation.inputs
            if (node := file.producer(name)) is not None and node.op_type == "Sigmoid"
        ]
        if len(sigmoids) != 1 or set(activation.inputs) != {sigmoids[0].inputs[0], sigmoids[0].outputs[0]}:
            return False
        removed, gate, source = [final, activation, sigmoids[0]], _SILU, sigmoids[0].inputs[0]
    elif activation.op_type in ("FastGelu", "Gelu") and is_plain(activation):
        removed, gate, source = [final, activation], _GELU, activation.inputs[0]
    else:
        return False
    first = file.producer(source)
    if first is None or not _joinable(first, second):
        return False
    inside = {source, act, up, *(name for node in removed[1:] for name in node.outputs)}
    if any(node not in (*removed, first, second) for name in inside for node in file.consumers(name)) or any(
        value.name in inside for value in file.outputs
    ):
        return False
    joined = Node(
        "RowsProduct",
        DOMAIN,
        final.name,
        [*first.inputs[:2], "", second.inputs[1], *first.inputs[MATRICES:], *second.inputs[MATRICES:]],
        final.outputs,
        {**first.attributes, "gate": gate},
    )
    file.nodes[file.nodes.index(final)] = joined
    for node in (*removed[1:], first, second):
        file.nodes.remove(node)
    return True


def is_plain(node: Node) -> bool:
    """Return whether an activation has no bias and, for Gelu, whether it uses the tanh approximation."""
    if node.op_type == "Gelu":
        return node.attributes.get("approximate") == b"tanh"
    return not any(node.inputs[1:])


def _is_bias(tensor: Tensor, product: Node) -> bool:
    return tensor.data_type == FLOAT and tensor.dims == (product.attributes["columns"],)


def _joinable(first: Node, second: Node) -> bool:
    """Return whether two products have no bias, read the same rows, and differ only in their weights."""
    return (
        first.op_type == second.op_type == "RowsProduct"
        and first is not second
        and not any(first.inputs[2:MATRICES] + second.inputs[2:MATRICES])
        and len(first.inputs) == len(second.inputs)
        and first.inputs[0] == second.inputs[0]
        and first.attributes == second.attributes
    )
