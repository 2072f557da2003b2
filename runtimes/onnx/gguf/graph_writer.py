"""Appends nodes to the graph of a GGUF model: norms, and products whose matrices a graph only names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.gguf.gguf_names import module_of
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor
from edgedecode.pack.manifest import STACKS

from ..graph_session import ADAPTER_INPUT, SQUARES_OUTPUT
from ..kernels.products import FLOAT, UINT8
from .metadata import Layer, Metadata
from .weights import GgufWeights, Piece, piece_range

INT64, MICROSOFT = 7, "com.microsoft"
_FLOAT16 = 10
_Array = npt.NDArray[np.generic]
_TYPES = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.int64): INT64,
    np.dtype(np.float16): _FLOAT16,
    np.dtype(np.uint8): UINT8,
}


@dataclass(slots=True)
class GraphWriter:
    """A graph as it grows. Methods append nodes, and return the names of their results."""

    metadata: Metadata
    weights: GgufWeights
    context: int
    adapters: bool
    squares: bool
    kv_scales: FloatArray | None
    file: GraphFile = field(default_factory=GraphFile)
    count: int = 0
    layers: list[Layer] = field(init=False)

    def __post_init__(self) -> None:
        self.layers = self.metadata.every_layer

    def _residual(self, y: str, weight: str) -> str:
        """Return what a layer adds: y, with a norm of its own if the file has one, scaled."""
        y = self._norm(y, weight) if self.weights.has(weight) else y
        return self._scaled(y, self.metadata.number("residual_scale", 1.0))

    def _sum_norm(self, x: str, y: str, weight: str) -> tuple[str, str]:
        """Return the norm of x + y, and x + y, of one node; an empty y is none."""
        normed = self._norm(x, weight)
        if not y:
            return normed, x
        node = self.file.nodes[-1]
        node.op_type, node.domain = "SkipSimplifiedLayerNormalization", MICROSOFT
        node.inputs.insert(1, y)
        node.outputs += ["", "", f"{normed}.sum"]
        del node.attributes["axis"]
        return normed, node.outputs[3]

    def _norm(self, x: str, weight: str) -> str:
        epsilon = self.metadata.number("attention.layer_norm_rms_epsilon", 1e-5)
        known = weight in self.file.initializers
        name = weight if known else self._initializer(weight, self.weights.vector(weight))
        return self._node("SimplifiedLayerNormalization", [x, name], {"epsilon": epsilon, "axis": -1})

    def _product(self, x: str, pieces: Sequence[Piece]) -> str:
        """Multiply by one or several tensors, one after the other, and add their biases."""
        name = self.weights.joined(pieces)
        if self.squares:
            self._sum_squares(x, [tensor for tensor, _ in pieces], inner=self.weights.shape(name)[1])
        y = self._base_product(x, name, pieces)
        found = module_of(pieces[0][0], self.metadata.name) if self.adapters else None
        if found is None:
            return y
        module, part = "qkv_proj" if len(pieces) > 1 else found.module, pieces[0][1]
        if part is not None:
            module = STACKS["gate_up_proj"][part[0] > 0]
        return self._node(
            "Add", [y, self._delta(x, f"{ADAPTER_INPUT}{found.layer}.{module}", *self.weights.shape(name))]
        )

    def _delta(self, x: str, name: str, columns: int, inner: int) -> str:
        """Return what an adapter adds; the defaults of its matrices have rank 0. Each rank has a name of its own."""
        y, rank = x, f"{name}.r"
        for matrix, sizes in ((f"{name}.a", (inner, rank)), (f"{name}.b", (rank, columns))):
            self.file.inputs.append(ValueInfo(matrix, FLOAT, sizes))
            empty = np.zeros([size if isinstance(size, int) else 0 for size in sizes], np.float32)
            y = self._node("MatMul", [y, self._initializer(matrix, empty)])
        return y

    def _base_product(self, x: str, name: str, pieces: Sequence[Piece]) -> str:
        added = self._biases(pieces)
        self.weights.check_served(pieces[0][0])
        columns, inner = self.weights.shape(name)
        # Activations of 16 bits: KL to the file's float model 1e-7 (SmolLM2-135M, Q4_1), with 8 bits 0.002 to 0.008,
        # where a pass of one row takes 0.92 to 1.0 of the time.
        attributes = {"K": inner, "N": columns, "accuracy_level": 0}
        return self._node("MatMulNBits", [x, name, "", "", "", *added], attributes, domain=MICROSOFT)

    def _sum_squares(self, x: str, tensors: Sequence[str], *, inner: int) -> None:
        """Add the outputs of the matrices that read `x`, of `inner` columns."""
        for output in [SQUARES_OUTPUT + name for name in tensors if name.startswith("blk.")]:
            if all(output != value.name for value in self.file.outputs):  # two products read one stacked matrix
                rows = self._constant(np.array([0, 1], np.int64))
                self.file.nodes.append(Node("ReduceSumSquare", "", output, [x, rows], [output], {"keepdims": 0}))
                self.file.outputs.append(ValueInfo(output, FLOAT, (inner,)))

    def _biases(self, pieces: Sequence[Piece]) -> list[str]:
        """Return the initializer with the biases of a product's tensors, if they have any."""
        names = [tensor.removesuffix("weight") + "bias" for tensor, _ in pieces]
        if not all(self.weights.has(name) for name in names):
            return []
        values = [self.weights.vector(name)[piece_range(part)] for name, (_, part) in zip(names, pieces, strict=True)]
        return [self._initializer(f"{self.weights.joined(pieces)}.bias", np.concatenate(values))]

    def _scaled(self, x: str, factor: float) -> str:
        return x if factor == 1.0 else self._node("Mul", [x, self._constant(np.array(factor, np.float32))])

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, int | float | bytes] | None = None,
        *,
        domain: str = "",
    ) -> str:
        self.count += 1
        output = f"{kind}.{self.count}"
        self.file.nodes.append(Node(kind, domain, output, list(inputs), [output], dict(attributes or {})))
        return output

    def _constant(self, values: _Array) -> str:
        return self._initializer(f"constant.{values.dtype}.{values.tolist()}", values)

    def _initializer(self, name: str, values: _Array) -> str:
        data = np.ascontiguousarray(values)
        self.file.initializers[name] = Tensor(name, _TYPES[data.dtype], values.shape, data.tobytes())
        return name

    def _rename(self, old: str, new: str) -> None:
        for node in self.file.nodes:
            node.outputs = [new if name == old else name for name in node.outputs]
