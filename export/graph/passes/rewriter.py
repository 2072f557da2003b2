"""Builds the nodes that replace one node of a graph."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


class Rewriter:
    """Builds the nodes that replace `node`, in order before it."""

    def __init__(self, node: ir.Node) -> None:
        assert node.graph is not None
        self.node = node
        self.graph = node.graph
        self._name = node.name or str(node.outputs[0].name)
        self._count = 0

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: int | float | Sequence[int]) -> ir.Value:
        """Insert a float32 node with one output and return that."""
        return self._insert(ir.node(op_type, inputs, attributes))[0]

    def split(self, value: ir.Value, sizes: list[int]) -> list[ir.Value]:
        """Split the last dimension."""
        return self._insert(
            ir.node("Split", [value, self.constant(np.asarray(sizes, np.int64))], {"axis": -1}, num_outputs=len(sizes))
        )

    def reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        return self.add("Reshape", value, self.constant(np.asarray(shape, np.int64)))

    def scaled(self, value: ir.Value, factor: float) -> ir.Value:
        return self.add("Mul", value, self.constant(np.asarray([factor], np.float32)))

    def take_over(self, old: ir.Value, new: ir.Value) -> None:
        """Let `new` replace `old`, name and place in the graph's outputs included."""
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.name = f"{old.name}/replaced"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

    def finish(self, *replacements: ir.Value) -> None:
        """Let the replacements take the places of the node's first outputs, and remove the node."""
        for old, new in zip(self.node.outputs, replacements, strict=True):
            self.take_over(old, new)
        self.remove()

    def remove(self) -> None:
        """Remove the node, whose outputs are replaced."""
        self.graph.remove(self.node, safe=True)

    def constant(self, numbers: npt.NDArray[np.generic]) -> ir.Value:
        return self._insert(ir.node("Constant", [], {"value": ir.tensor(numbers)}))[0]

    def _insert(self, new: ir.Node) -> list[ir.Value]:
        new.name = f"{self._name}/{new.op_type}_{self._count}"
        self._count += 1
        kind = new.attributes["value"].as_tensor().dtype if new.op_type == "Constant" else ir.DataType.FLOAT
        for index, output in enumerate(new.outputs):
            output.name, output.type = f"{new.name}/output_{index}", ir.TensorType(kind)
        self.graph.insert_before(self.node, new)
        return list(new.outputs)
