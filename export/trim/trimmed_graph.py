"""Makes a draft's graph with a smaller vocabulary: the same body over the same weights file, fewer rows of logits.

The rows that are kept are copied, bit for bit, into the graph's own file: a graph reads one weights file only. The
embedding stays whole, because the draft reads every id. With a multiple of 32 ids, the logits equal the full graph's
bit for bit; kernels round partial tiles differently.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Graph, ModelEntry

from ..frameworks import reason_of
from ..graph.passes.picked_rows import head_of

Numbers: TypeAlias = npt.NDArray[Any]

_ORDER, _BIAS = 4, 5
"""Inputs of MatMulNBits: the order of its columns, and its bias. Those before, from 1 on, have one part per row."""
_CONCAT = "concat"


def write_trimmed(base: Graph, entry: ModelEntry, root: Path, *, out: Path, ids: IntArray) -> Graph:
    """Write the graph of a model of the pack at `root`, with the logits of these ids, to `out`; return its entry.

    base: the full graph. ids: ascending. The entry's `file` and `token_ids` are left as they are.
    Raises ExportError if the graph cannot be trimmed, InputError if `ids` is not a subset of the vocabulary.
    """
    if _CONCAT in base.capabilities:
        raise ExportError(f"{base.file} concatenates its KV cache itself: only graphs made by `export` can be trimmed")
    model = _read(root / base.file)
    ir.external_data.set_base_dir(model.graph, (root / entry.weights).parent)
    if not any(value.name == "rows" for value in model.graph.inputs):
        raise ExportError(f"{base.file} computes logits for every position: export the model again, then trim it")
    _Head(model, head_of(model), name=base.file, rows=entry.rows).cut(TrimmedVocabulary(ids, entry.rows).ids)
    try:
        ir.save(model, out)
    except OSError as error:
        raise ExportError(f"{out} cannot be written: {error.strerror or error}") from None
    return replace(base, compiled=())


@dataclass(frozen=True, slots=True)
class _Head:
    """The matrix product that computes the logits, of `rows` rows, and the nodes after it."""

    model: ir.Model
    node: ir.Node
    name: str
    rows: int

    def cut(self, ids: IntArray) -> None:
        """Keep the rows of these ids only."""
        tail = self._tail()
        if self.node.op_type == "MatMulNBits":
            self._cut_blocks(ids)
        else:
            self._cut_floats(ids)
        for node in tail:
            for index, value in enumerate(node.inputs[1:], 1):
                if value is not None and self._is_wide(value):
                    self._replace(node, index, self._array(value)[..., ids])
        for node in (self.node, *tail):
            if (shape := node.outputs[0].shape) is not None:
                node.outputs[0].shape = ir.Shape([*shape[:-1], len(ids)])
        graph = self.model.graph
        for name in [name for name, value in graph.initializers.items() if not value.uses()]:
            del graph.initializers[name]

    def _tail(self) -> list[ir.Node]:
        """Return the nodes from the product to the logits, whose other inputs must all be constants."""
        value = next(value for value in self.model.graph.outputs if value.name == "logits")
        found: list[ir.Node] = []
        while (node := value.producer()) is not self.node:
            if node is None or node.inputs[0] is None or not all(map(_is_constant, node.inputs[1:])):
                raise ExportError(f"{self.name} combines its logits with values that are not constant: unsupported")
            found.append(node)
            value = node.inputs[0]
        return found[::-1]

    def _cut_blocks(self, ids: IntArray) -> None:
        node = self.node
        if len(node.inputs) > _ORDER and node.inputs[_ORDER] is not None:
            raise self._unsupported("has reordered columns")
        if node.attributes.get_int("N", 0) != self.rows:
            raise self._unsupported(f"has {node.attributes.get_int('N', 0)} rows instead of {self.rows}")
        for index in (1, 2, 3, _BIAS):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None:
                continue
            array = self._array(value)
            if array.size % self.rows:
                raise self._unsupported(f"has {array.size} values for {self.rows} rows")
            kept = array.reshape(self.rows, -1)[ids]
            self._replace(node, index, kept.reshape(-1 if array.ndim == 1 else (len(ids), *array.shape[1:])))
        node.attributes["N"] = ir.AttrInt64("N", len(ids))

    def _cut_floats(self, ids: IntArray) -> None:
        node, index = self.node, 1
        across = node.attributes.get_int("transB", 0)
        if (value := node.inputs[1]) is not None and (cast := value.producer()) is not None and cast.op_type == "Cast":
            node, index, value = cast, 0, cast.inputs[0]
        array = self._array(value)
        if array.ndim != 2 or array.shape[0 if across else 1] != self.rows:
            raise self._unsupported(f"has the shape {list(array.shape)} for {self.rows} rows")
        self._replace(node, index, array[ids] if across else array[:, ids])
        if node is not self.node and (shape := node.outputs[0].shape) is not None:
            node.outputs[0].shape = ir.Shape([len(ids), shape[1]] if across else [shape[0], len(ids)])
        bias = self.node.inputs[2] if len(self.node.inputs) > 2 else None
        if bias is not None and self._is_wide(bias):
            self._replace(self.node, 2, self._array(bias)[..., ids])

    def _is_wide(self, value: ir.Value) -> bool:
        """Return whether a constant has one element per id."""
        array = self._array(value)
        return array.ndim > 0 and array.shape[-1] == self.rows

    def _array(self, value: ir.Value | None) -> Numbers:
        """Return a constant's elements; those in the weights file are mapped, not read."""
        producer = None if value is None else value.producer()
        tensor = None if value is None else value.const_value
        if producer is not None and "value" in producer.attributes:
            tensor = producer.attributes["value"].as_tensor()
        if tensor is None:
            raise self._unsupported("is not constant")
        try:
            return tensor.numpy()
        except (OSError, OverflowError, ValueError) as error:
            raise ExportError(f"the weights of {self.name} cannot be read ({error}): export the pack again") from None

    def _replace(self, node: ir.Node, index: int, array: Numbers) -> None:
        """Make a new constant an input of a node; others may still use the old one."""
        old = node.inputs[index]
        assert old is not None
        tensor = ir.tensor(np.ascontiguousarray(array), name=f"{old.name}/trim")
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self.model.graph.register_initializer(value)
        node.replace_input_with(index, value)

    def _unsupported(self, what: str) -> ExportError:
        return ExportError(f"the head of {self.name} {what}: it cannot be trimmed")


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_initializer():
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _read(path: Path) -> ir.Model:
    try:
        return ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise various types
        raise ExportError(
            f"{path} is not a valid graph ({reason_of(error)}): export or import the pack again"
        ) from None
