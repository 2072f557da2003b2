"""Finds the MLPs of a quantized graph by its structure: act(gate) × up, then down."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node

_PRODUCT = "MatMulNBits"
_ELEMENTWISE = {"Mul", "Sigmoid", "Gelu", "FastGelu", "QuickGelu", "Silu", "Swish"}
_DEEPEST = 8
"""Largest number of elementwise nodes between a projection and the product; an activation has three at most."""
_BITS = (4, 8)
_LEAST_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Projection:
    """A matmul with a matrix [outputs, inputs], quantized in blocks along the inputs."""

    node: Node
    inputs: int
    outputs: int
    bits: int
    block: int

    @classmethod
    def of(cls, node: Node) -> "Projection | None":
        """Read a node; None if it has zero points, a bias or a g_idx, or neither 4 nor 8 bits."""
        sizes = [node.attributes.get(name) for name in ("K", "N", "bits", "block_size")]
        if any(node.inputs[3:]) or len(node.inputs) < 3:
            return None
        numbers = [size for size in sizes if isinstance(size, int) and size > 0]
        if len(numbers) < len(sizes) or numbers[2] not in _BITS or numbers[3] % _LEAST_BLOCK:
            return None
        return cls(node, *numbers)

    @property
    def packed(self) -> str:
        """The name of the quantized values."""
        return self.node.inputs[1]

    @property
    def scales(self) -> str:
        return self.node.inputs[2]

    @property
    def blocks(self) -> int:
        """Blocks per row."""
        return -(-self.inputs // self.block)


@dataclass(frozen=True, slots=True)
class Mlp:
    """The projections that compute the hidden units (gate and up), and the one that consumes them (down)."""

    sides: tuple[Projection, Projection]
    down: Projection

    @property
    def units(self) -> int:
        return self.down.inputs


def find_mlps(graph: GraphFile) -> list[Mlp]:
    """Return the MLPs that can be widened: three separate projections, and a multiple of the block size of units."""
    producers = {output: node for node in graph.nodes for output in node.outputs if output}
    found = (_mlp(node, producers) for node in graph.nodes if node.op_type == _PRODUCT and node.inputs)
    return [mlp for mlp in found if mlp is not None]


def _mlp(node: Node, producers: Mapping[str, Node]) -> Mlp | None:
    product = producers.get(node.inputs[0])
    if product is None or product.op_type != "Mul" or len(product.inputs) != 2:
        return None
    sources = [{id(found): found for found in _projections(name, producers)} for name in product.inputs]
    if any(len(of_side) != 1 for of_side in sources):
        return None
    first, second = (next(iter(of_side.values())) for of_side in sources)
    gate, up, down = Projection.of(first), Projection.of(second), Projection.of(node)
    if first is second or gate is None or up is None or down is None or first.inputs[0] != second.inputs[0]:
        return None
    fits = gate.outputs == up.outputs == down.inputs and down.inputs % down.block == 0
    return Mlp((gate, up), down) if fits else None


def _projections(name: str, producers: Mapping[str, Node], depth: int = 0) -> Iterator[Node]:
    """Yield the projections from which a value is computed elementwise; constants are skipped."""
    node = producers.get(name)
    if node is None or depth > _DEEPEST:
        return
    if node.op_type == _PRODUCT:
        yield node
    elif node.op_type in _ELEMENTWISE:
        for source in node.inputs[:2]:
            yield from _projections(source, producers, depth + 1)
