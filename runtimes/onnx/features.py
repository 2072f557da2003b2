"""What layers of a target read, as further outputs of its graph: a drafting head reads them (EAGLE-3, 2503.01840). And
what its last product reads, which embeds texts.
"""

from collections.abc import Sequence
from ctypes import memmove

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.memory.budget import Lease
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node

from .graph_needs import FLOAT_NBYTES
from .graph_session import HIDDEN
from .kernels.products import FLOAT
from .onnx_engine import Untyped

SLOTS = 288
"""Positions whose features a state keeps: those of a long prompt's last pass, and 32 before. With 512, SmolLM2-135M
gets 0.9% more tokens a round after prompts of 523 to 1,299 tokens, and keeps 1.5 MB more."""
_SUM = 3
"""The place of the sum among the outputs of an addition fused with a norm."""
PICKED_ROWS = "R"
"""The dimension of outputs that have the rows with logits only."""
_PICKED = "/rows/hidden"
"""What exported graphs name the rows of the last norm whose logits are asked for."""


def add_features(file: GraphFile, layers: Sequence[int], *, of: int) -> tuple[str, ...]:
    """Make what enters these layers outputs of the graph, before their norms, and return its names.

    of: the target's layers; the layer of this number stands for what follows the final norm, and the next one for the
    same of the rows with logits alone.
    None of them if a layer does not begin with the sum of two values and a norm, as the first one does not.
    """
    found: list[str] = []
    for layer in layers:
        if layer > of:
            norms = [node for node in file.nodes if node.op_type.endswith("SimplifiedLayerNormalization")]
            file.outputs.append(ValueInfo(norms[-1].outputs[0], FLOAT, (1, PICKED_ROWS, "hidden")))
            return (norms[-1].outputs[0],)
        if layer == of:
            found.append(_every_final_row(file))
            continue
        weights = f"blk.{layer}.attn_norm.weight", f"model.layers.{layer}.input_layernorm.weight"
        nodes = [node for node in file.nodes if any(name in weights for name in node.inputs)]
        if len(nodes) != 1 or nodes[0].op_type != "SkipSimplifiedLayerNormalization" or len(nodes[0].outputs) <= _SUM:
            return ()
        found.append(nodes[0].outputs[_SUM])
    file.outputs += [ValueInfo(name, FLOAT, (1, "S", "hidden")) for name in found]
    return tuple(found)


def _every_final_row(file: GraphFile) -> str:
    """Let the final norm compute every row, from which the rows of the logits are picked, and return its output."""
    picks = [node for node in file.nodes if node.op_type == "Gather" and node.inputs[1:] == ["rows"]]
    nodes = [node for node in file.nodes if node not in picks]
    last = max(place for place, node in enumerate(nodes) if node.op_type.endswith("SimplifiedLayerNormalization"))
    final, picked = nodes[last].outputs[0], f"{nodes[last].outputs[0]}.picked"
    places = {node.outputs[0]: node.inputs[0] for node in picks}
    if final in places.values():
        return final  # as in exported graphs
    for node in nodes:
        node.inputs = [places.get(name, name) for name in node.inputs]
    for node in nodes[last + 1 :]:
        node.inputs = [picked if name == final else name for name in node.inputs]
    pick = Node("Gather", "", picked, [final, "rows"], [picked], {"axis": 1})
    file.nodes[:] = [*nodes[: last + 1], pick, *nodes[last + 1 :]]
    return final


def add_hidden(file: GraphFile, hidden: int) -> bool:
    """Make the picked rows before the last product an output of an exported graph. Return whether it has them."""
    if not any(_PICKED in node.outputs for node in file.nodes):
        return False
    file.nodes.append(Node("Identity", inputs=[_PICKED], outputs=[HIDDEN]))
    file.outputs.append(ValueInfo(HIDDEN, FLOAT, ("R", hidden)))
    return True


def features_nbytes(taps: int, hidden: int) -> int:
    """Return the bytes that a state's features take."""
    return taps * SLOTS * hidden * FLOAT_NBYTES


class FeatureRows:
    """Implements `Features`: those of a state's last positions, pending rows included, where passes write them.

    outputs: the graph's, by `add_features`. start: the state's length, as those of earlier positions are not known.
    picked: they are of the rows with logits only; what lies before the last pass's is forgotten.
    """

    def __init__(self, outputs: Sequence[str], *, hidden: int, start: int, lease: Lease, picked: bool) -> None:
        self._outputs, self._lease, self._picked = outputs, lease, picked
        self._values = np.empty((len(outputs), SLOTS, hidden), np.float32)
        self._addresses = [values.ctypes.data for values in self._values]
        self.oldest = self._end = start

    def rows(self, start: int, stop: int) -> FloatArray:
        first = start - self.oldest
        assert 0 <= first <= stop - self.oldest <= SLOTS
        found = self._values[:, first : stop - self.oldest].swapaxes(0, 1)
        return np.ascontiguousarray(found).reshape(stop - start, len(self._values) * found.shape[-1])

    def bind(self, binding: Untyped, *, first: int, width: int, rows: Sequence[int]) -> None:
        """Let a pass write those of `width` rows, the first at this slot of the state. rows: those with logits."""
        if self._picked:
            if list(rows) != [*range(width - len(rows), width)]:
                self._scattered(binding, len(rows), end=first + width)
                return
            first, width = first + width - len(rows), len(rows)
        if not self.oldest <= first <= self._end:  # the rows between have no features
            self.oldest = first
        if first + width - self.oldest > SLOTS:
            kept = min(first - self.oldest, SLOTS // 2, SLOTS - width)
            for values in self._values:  # without a copy in between
                moved = values[first - kept - self.oldest : first - self.oldest]
                memmove(values.ctypes.data, moved.ctypes.data, moved.nbytes)
            self.oldest = first - kept
        hidden = self._values.shape[-1]
        after, shape = (first - self.oldest) * hidden * FLOAT_NBYTES, (1, width, hidden)
        for name, address in zip(self._outputs, self._addresses, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, shape, address + after)
        self._end = first + width

    def _scattered(self, binding: Untyped, count: int, *, end: int) -> None:
        """Let a pass write those of rows that are not its last ones where nobody reads them."""
        self._unread = np.empty((1, count, self._values.shape[-1]), np.float32)
        for name in self._outputs:
            binding.bind_output(name, "cpu", 0, np.float32, self._unread.shape, self._unread.ctypes.data)
        self.oldest = self._end = end

    def gather(self, path: Sequence[int], *, length: int) -> None:
        """Move those of the pending rows of a path behind the settled ones."""
        if length < self.oldest:  # some of them are not known
            self.oldest = self._end = length + len(path)
            return
        start = length - self.oldest
        self._values[:, start : start + len(path)] = self._values[:, [start + row for row in path]]

    def settle(self, length: int) -> None:
        """Drop those of positions from `length` on."""
        self._end = min(self._end, length)
        self.oldest = min(self.oldest, length)

    def close(self) -> None:
        """Release the memory's lease."""
        self._lease.release()
