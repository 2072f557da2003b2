"""Measure a graph's memory from its nodes: the weights it uses, and the values that are live at one time."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod

from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor

from .graph_session import LAYER_ROWS, SQUARES_OUTPUT
from .providers.kv_cache import CacheShape, cache_shapes
from .recurrence import PAST_STATE, RecurrentShape, recurrent_shapes

_PICKS = ("Gather", "GatherBlockQuantized")
_OUR_EMBEDDING = "TileRows"
_QUANTIZED = "MatMulNBits"
_HALF_BYTE, _INT8_LEVEL = 4, 4
"""Bits of a weight, and the accuracy level that allows rounded activations."""
FLOAT_NBYTES = 4
_PRODUCTS = (_QUANTIZED, "RowsProduct", "MatMul", "FloatProduct", "Gemm")
_ENGINES_ATTENTION = "GroupQueryAttention"
_ATTENTION = (_ENGINES_ATTENTION, "TreeAttention", "TreeAttentionInt8")


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Sizes of one graph as the engine opens it.

    tables_nbytes: of initializers used in place, such as the embedding. products_nbytes: of product matrices as the
    engine packs them. values: peak number of live floats per row of a pass. logits: peak number of live copies of a
    row of logits before the graph's output. unpacked_nbytes: of the largest matrix that the engine dequantizes to
    multiply by it. squares: the columns of all outputs with sums of squares.
    """

    tables_nbytes: int
    products_nbytes: int
    values: int
    logits: int
    unpacked_nbytes: int = 0
    squares: int = 0
    caches: tuple[CacheShape, ...] = ()
    """Keys and values, in the order of the graph's inputs."""
    recurrent: tuple[RecurrentShape, ...] = ()
    """The memories of recurrent operators, likewise."""


_MEASURED: dict[tuple[bytes, int], GraphSizes] = {}


def measured_sizes(data: bytes, *, hidden: int) -> GraphSizes:
    """Return `graph_sizes` of a file's bytes, cached per process, as both planning and opening a model need them.

    Raises ValueError or IndexError if the bytes are not a graph.
    """
    key = sha256(data).digest(), hidden
    if key not in _MEASURED:
        _MEASURED[key] = graph_sizes(GraphFile.parse(data), hidden=hidden)
    return _MEASURED[key]


def graph_sizes(file: GraphFile, *, hidden: int) -> GraphSizes:
    """Measure a graph whose hidden states have `hidden` values. A table that is used both ways counts twice."""
    tables: dict[str, int] = {}
    products: dict[str, float] = {}
    unpacked = 0
    for node in file.nodes:
        unpacked = max(unpacked, _unpacked_nbytes(node))
        for place, name in enumerate(node.inputs):
            tensor = file.initializers.get(name)
            if tensor is None or tensor.external is None:
                continue  # tensors inside the graph are counted with its file
            nbytes = tensor.external.length or 0
            if place and node.op_type in _PRODUCTS:
                products[name] = nbytes * _packing_factor(node, tensor, nbytes)
            else:
                tables[name] = nbytes
    every = _widths(file, hidden)
    sums = (size for value in file.outputs if value.name.startswith(SQUARES_OUTPUT) for size in value.dims or ())
    after = _after_heads(file, every)
    return GraphSizes(
        tables_nbytes=sum(tables.values()),
        products_nbytes=round(sum(products.values())),
        values=_most_live(file, every),
        logits=_most_live(file, after),
        unpacked_nbytes=unpacked,
        squares=sum(size for size in sums if isinstance(size, int)),
        caches=cache_shapes((value.name, value.dims or ()) for value in file.inputs),
        recurrent=recurrent_shapes((value.name, value.dims or ()) for value in file.inputs),
    )


def _packing_factor(node: Node, tensor: Tensor, nbytes: int) -> float:
    """Return the ratio of a matrix's packed size to its stored size.

    A quantized block of b bytes and a float32 scale is packed as b bytes, a scale and a sum, and the file's scales stay
    in memory: (b + 12) / (b + 4). 16-bit values stay in memory as read and as float32.
    """
    if node.op_type == _QUANTIZED:
        block = _number(node, "block_size") * _number(node, "bits") / 8
        return (block + 12) / (block + 4)
    return 3.0 if nbytes == 2 * prod(tensor.dims) else 1.0


def _unpacked_nbytes(node: Node) -> int:
    """Return the bytes of a quantized matrix that the engine dequantizes in each pass, if it has no kernel for it.

    It has kernels for 4 bits and, if activations may be rounded to 8 bits, for 8.
    """
    if node.op_type != _QUANTIZED:
        return 0
    served = _number(node, "bits") == _HALF_BYTE or _number(node, "accuracy_level") == _INT8_LEVEL
    return 0 if served else FLOAT_NBYTES * _number(node, "N") * _number(node, "K")


def _most_live(file: GraphFile, widths: Mapping[str, int]) -> int:
    """Walk the nodes in order; return the largest total width of the values that are live at one time."""
    outputs = {value.name for value in file.outputs}
    last = {name: index for index, node in enumerate(file.nodes) for name in node.inputs}
    live = most = sum(widths.get(value.name, 0) for value in file.inputs)
    for index, node in enumerate(file.nodes):
        live += sum(widths.get(name, 0) for name in node.outputs if name not in outputs)
        most = max(most, live + _temporaries(node, widths))
        done = {name for name in (*node.inputs, *node.outputs) if last.get(name, index) <= index}
        live -= sum(widths.get(name, 0) for name in done if name not in outputs)
    return most


def _temporaries(node: Node, widths: Mapping[str, int]) -> int:
    """Return the width of temporary values inside one of the engine's operators."""
    if node.op_type == _ENGINES_ATTENTION:  # queries, keys and values by head, before and after they are rotated
        return 2 * sum(widths.get(name, 0) for name in node.inputs[:3])
    if node.op_type == _QUANTIZED:  # rounded to 8 bits, with scales
        return -(-widths.get(node.inputs[0], 0) // 3)
    return 0


def _widths(file: GraphFile, hidden: int) -> dict[str, int]:
    """Return the floats per row of each value that is computed for all rows of a pass."""
    rows = [value for value in file.inputs if value.name == LAYER_ROWS]
    widths = {value.name: value.dims[-1] for value in rows if value.dims and isinstance(value.dims[-1], int)}
    for node in file.nodes:
        if width := _width(node, file.initializers, widths, hidden=hidden):
            stored = node.op_type in _ATTENTION or _is_recurrent(node)
            computed = node.outputs[:1] if stored else node.outputs  # the others are the layer's memory
            widths.update((name, width) for name in computed if name)
    return widths


def _width(node: Node, tensors: Mapping[str, Tensor], widths: Mapping[str, int], *, hidden: int) -> int:
    names = node.inputs
    if node.op_type == _OUR_EMBEDDING:
        return hidden
    if node.op_type in _PICKS:
        return hidden if names[0] in tensors else 0  # the embedding; otherwise picked rows, which are few
    if not any(name in widths for name in names):
        return 0
    if _is_recurrent(node):
        return _number(node, "channels")
    if node.op_type in _ATTENTION:
        heads, shared = _number(node, "num_heads"), _number(node, "kv_num_heads")
        width = widths.get(names[0], 0)
        return width if names[1] else width * heads // max(1, heads + 2 * shared)
    if node.op_type == "Split":
        return widths.get(names[0], 0) // len(node.outputs)
    if node.op_type in _PRODUCTS:
        matrix = tensors.get(names[1])
        stated = _number(node, "columns") or _number(node, "N")
        return stated or (matrix.dims[-1] if matrix is not None and matrix.dims else widths.get(names[1], hidden))
    return max(widths.get(name, 0) for name in names)


def _is_recurrent(node: Node) -> bool:
    """Return whether it has a state; such an operator names the values of a row of its result `channels`."""
    return any(name.startswith(PAST_STATE) for name in node.inputs)


def _after_heads(file: GraphFile, every: Mapping[str, int]) -> dict[str, int]:
    """Return the values computed from logits, that is from head products of the picked rows, each with width 1."""
    found: dict[str, int] = {}
    outputs = {value.name for value in file.outputs}
    rows = max((width for width in every.values()), default=0)
    for node in file.nodes:
        picked = node.op_type in _PRODUCTS and node.inputs[0] not in every and not set(node.outputs) & outputs
        wide = max(_number(node, "columns"), _number(node, "N")) > rows
        if (picked and wide) or any(name in found for name in node.inputs):
            found.update((name, 1) for name in node.outputs if name not in outputs)
    return found


def _number(node: Node, name: str) -> int:
    value = node.attributes.get(name, 0)
    return value if isinstance(value, int) else 0
