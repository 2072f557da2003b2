"""Merges adapter deltas into the products of a rewritten graph: product + (x · first) · second."""

from collections.abc import Sequence

from edgedecode.adapters.adapter_parts import part_starts
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor

from .products import UINT8

MATRICES = 4
"""Number of a product's inputs before an adapter's matrices: rows, tiles, bias, tiles of a second matrix."""
TILE = 32
"""Columns per tile, of a product's weights and of an adapter's second matrix."""
_PIECE = 512
"""Inputs per partial sum of an adapter's first product: kPiece in operators.cpp."""


def join_deltas(file: GraphFile, *, kv_width: int) -> None:
    """Replace the two products and the addition of each delta after one of our products by inputs of that product.

    kv_width: outputs of the key projection, for models whose query, key and value projections are one product.
    """
    for wide in [node for node in file.nodes if node.op_type == "MatMul"]:
        narrow, users = producer(file, wide.inputs[0]), consumers(file, wide.outputs[0])
        if narrow is None or narrow.op_type != "MatMul" or [node.op_type for node in users] != ["Add"]:
            continue
        (add,) = users
        (before,) = [name for name in add.inputs if name != wide.outputs[0]] or [""]
        product, matrices = producer(file, before), [narrow.inputs[1], wide.inputs[1]]
        inner = {narrow.outputs[0], wide.outputs[0], before}
        if (
            product is None
            or product.op_type != "RowsProduct"
            or len(product.inputs) > MATRICES
            or product.inputs[0] != narrow.inputs[0]
            or not all(name.startswith("lora.") and name.count(".") >= 2 for name in matrices)
            or any(len(consumers(file, name)) != 1 for name in inner)
            or any(value.name in inner for value in file.outputs)
            or any(value.dims is None for value in file.inputs if value.name in matrices)
        ):
            continue
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


def producer(file: GraphFile, name: str) -> Node | None:
    """Return the node that computes a value; None: an input or initializer."""
    return next((node for node in file.nodes if name in node.outputs), None)


def consumers(file: GraphFile, name: str) -> list[Node]:
    """Return the nodes that read a value."""
    return [node for node in file.nodes if name in node.inputs]
