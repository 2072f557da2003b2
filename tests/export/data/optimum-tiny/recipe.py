"""Write the graph in this folder: a tiny random Llama in the layout of optimum's `text-generation-with-past`.

Its inputs are input_ids, attention_mask, position_ids and past_key_values.N.key/value, all with a batch dimension. The
graph concatenates past and new rows, computes attention with plain nodes, and contains the weights. To rewrite
model.onnx, run:
python tests/export/data/optimum-tiny/recipe.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

FAR = np.finfo(np.float32).min


@dataclass(frozen=True)
class Layout:
    """Sizes of the model, and variations between exporters."""

    layers: int = 2
    hidden: int = 24
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 6
    mlp: int = 32
    rows: int = 352
    seed: int = 0
    window: int = 0
    """Number of positions that a row attends to in a graph with a window; 0: all."""
    positions: bool = True
    """Whether position_ids is an input; otherwise positions are computed from the attention mask."""


class OptimumGraph:
    """Builds the nodes and initializers of one graph."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._rng = np.random.default_rng(layout.seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}

    def build(self) -> onnx.ModelProto:
        layout = self.layout
        hidden = self._node(
            "Gather", [self._normal("model.embed_tokens.weight", layout.rows, layout.hidden), "input_ids"]
        )
        rotary, mask = self._rotary(), self._mask()
        for layer in range(layout.layers):
            hidden = self._layer(hidden, layer, rotary, mask)
        head = self._normal("lm_head.weight", layout.hidden, layout.rows)
        self._node("MatMul", [self._norm(hidden, "model.norm"), head], "logits")
        inputs = [("input_ids", "sequence_length"), ("attention_mask", "past_sequence_length + sequence_length")]
        inputs += [("position_ids", "sequence_length")] if layout.positions else []
        given = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", size]) for name, size in inputs]
        sizes = ["batch_size", "sequence_length", layout.rows]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, sizes)
        past = self._cache("past_key_values", "past_sequence_length")
        present = self._cache("present", "past_sequence_length + sequence_length")
        weights = list(self._weights.values())
        graph = helper.make_graph(self._nodes, "main_graph", [*given, *past], [logits, *present], initializer=weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def _layer(self, hidden: str, layer: int, rotary: tuple[str, str], mask: str) -> str:
        layout, name = self.layout, f"model.layers.{layer}"
        normed = self._norm(hidden, f"{name}.input_layernorm")
        query = self._rotated(self._heads(normed, f"{name}.self_attn.q_proj", layout.heads), rotary)
        key = self._rotated(self._heads(normed, f"{name}.self_attn.k_proj", layout.kv_heads), rotary)
        value = self._heads(normed, f"{name}.self_attn.v_proj", layout.kv_heads)
        keys = self._node("Concat", [f"past_key_values.{layer}.key", key], f"present.{layer}.key", axis=-2)
        values = self._node("Concat", [f"past_key_values.{layer}.value", value], f"present.{layer}.value", axis=-2)
        scores = self._node("MatMul", [query, self._node("Transpose", [self._repeat(keys)], perm=[0, 1, 3, 2])])
        scaled = self._node("Mul", [scores, self._constant(np.float32(layout.head_size**-0.5))])
        shares = self._node("Softmax", [self._node("Add", [scaled, mask])], axis=-1)
        mixed = self._node("Transpose", [self._node("MatMul", [shares, self._repeat(values)])], perm=[0, 2, 1, 3])
        flat = self._node("Reshape", [mixed, self._constant(np.array([0, 0, -1]))])
        width = layout.heads * layout.head_size
        hidden = self._node("Add", [hidden, self._project(flat, f"{name}.self_attn.o_proj", width, layout.hidden)])
        normed = self._norm(hidden, f"{name}.post_attention_layernorm")
        gate = self._project(normed, f"{name}.mlp.gate_proj", layout.hidden, layout.mlp)
        up = self._project(normed, f"{name}.mlp.up_proj", layout.hidden, layout.mlp)
        product = self._node("Mul", [self._node("Mul", [gate, self._node("Sigmoid", [gate])]), up])
        return self._node("Add", [hidden, self._project(product, f"{name}.mlp.down_proj", layout.mlp, layout.hidden)])

    def _mask(self) -> str:
        """Return the causal bias added to the scores, [1, 1, rows, past + rows]."""
        rows, every = self._length("input_ids"), self._length("attention_mask")
        past = self._node("Sub", [every, rows])
        zero, one = self._constant(np.int64(0)), self._constant(np.int64(1))
        query = self._node("Unsqueeze", [self._node("Range", [past, every, one]), self._constant(np.array([1]))])
        key = self._node("Unsqueeze", [self._node("Range", [zero, every, one]), self._constant(np.array([0]))])
        seen = self._node("LessOrEqual", [key, query])
        if self.layout.window:
            edge = self._node("Sub", [query, self._constant(np.int64(self.layout.window))])
            seen = self._node("And", [seen, self._node("Greater", [key, edge])])
        mask = self._node("Where", [seen, self._constant(np.float32(0)), self._constant(np.float32(FAR))])
        return self._node("Unsqueeze", [mask, self._constant(np.array([0, 1]))])

    def _rotary(self) -> tuple[str, str]:
        """Return the rotary cosines and sines, [batch, 1, rows, head size]."""
        positions = "position_ids"
        if not self.layout.positions:
            counted = self._node("CumSum", ["attention_mask", self._constant(np.int64(1))])
            counted = self._node("Sub", [counted, self._constant(np.int64(1))])
            start = self._node("Sub", [self._length("attention_mask"), self._length("input_ids")])
            start = self._node("Unsqueeze", [start, self._constant(np.array([0]))])
            end = self._constant(np.array([2**62]))
            positions = self._node("Slice", [counted, start, end, self._constant(np.array([1]))])
        half = self.layout.head_size // 2
        frequencies = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        places = self._node("Cast", [positions], to=TensorProto.FLOAT)
        places = self._node("Unsqueeze", [places, self._constant(np.array([1, 3]))])
        angles = self._node("Mul", [places, self._constant(np.concatenate([frequencies, frequencies]))])
        return self._node("Cos", [angles]), self._node("Sin", [angles])

    def _rotated(self, value: str, rotary: tuple[str, str]) -> str:
        half, axis = self.layout.head_size // 2, self._constant(np.array([3]))
        zero, middle, end = (self._constant(np.array([place])) for place in (0, half, 2 * half))
        negative = self._node("Neg", [self._node("Slice", [value, middle, end, axis])])
        rotated = self._node("Concat", [negative, self._node("Slice", [value, zero, middle, axis])], axis=-1)
        return self._node("Add", [self._node("Mul", [value, rotary[0]]), self._node("Mul", [rotated, rotary[1]])])

    def _heads(self, hidden: str, name: str, count: int) -> str:
        size = self.layout.head_size
        flat = self._project(hidden, name, self.layout.hidden, count * size)
        split = self._node("Reshape", [flat, self._constant(np.array([0, 0, count, size]))])
        return self._node("Transpose", [split], perm=[0, 2, 1, 3])

    def _repeat(self, value: str) -> str:
        """Repeat keys or values for every query head."""
        times = self.layout.heads // self.layout.kv_heads
        spread = self._node("Unsqueeze", [value, self._constant(np.array([2]))])
        spread = self._node("Expand", [spread, self._constant(np.array([1, 1, times, 1, 1]))])
        return self._node(
            "Reshape", [spread, self._constant(np.array([0, self.layout.heads, -1, self.layout.head_size]))]
        )

    def _norm(self, value: str, name: str) -> str:
        square = self._node("Pow", [value, self._constant(np.float32(2))])
        mean = self._node("ReduceMean", [square, self._constant(np.array([-1]))], keepdims=1)
        root = self._node("Sqrt", [self._node("Add", [mean, self._constant(np.float32(1e-5))])])
        normed = self._node("Div", [value, root])
        weight = (1 + 0.2 * self._rng.standard_normal(self.layout.hidden)).astype(np.float32)
        return self._node("Mul", [self._tensor(f"{name}.weight", weight), normed])

    def _project(self, value: str, name: str, inner: int, outer: int) -> str:
        return self._node("MatMul", [value, self._normal(f"{name}.weight", inner, outer)])

    def _normal(self, name: str, inner: int, outer: int) -> str:
        scale = 1.0 if "embed" in name else 2 * inner**-0.5
        return self._tensor(name, (self._rng.standard_normal((inner, outer)) * scale).astype(np.float32))

    def _length(self, name: str) -> str:
        shape = self._node("Shape", [name])
        return self._node("Gather", [shape, self._constant(np.int64(1))], axis=0)

    def _constant(self, value: npt.ArrayLike) -> str:
        array = np.asarray(value)
        return self._tensor(f"/constant/{array.dtype}{array.tolist()}", array)

    def _tensor(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self._weights.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _node(self, kind: str, inputs: list[str], output: str | None = None, **attributes: object) -> str:
        output = output or f"/{kind}_{len(self._nodes)}_output_0"
        self._nodes.append(helper.make_node(kind, inputs, [output], name=f"/{kind}_{len(self._nodes)}", **attributes))
        return output

    def _cache(self, prefix: str, length: str) -> list[onnx.ValueInfoProto]:
        sizes = ["batch_size", self.layout.kv_heads, length, self.layout.head_size]
        names = [f"{prefix}.{layer}.{part}" for layer in range(self.layout.layers) for part in ("key", "value")]
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in names]


def write(path: Path, layout: Layout | None = None) -> None:
    """Write the graph, weights inside."""
    model = OptimumGraph(layout or Layout()).build()
    onnx.checker.check_model(model)
    onnx.save(model, path)


if __name__ == "__main__":
    write(Path(__file__).with_name("model.onnx"))
