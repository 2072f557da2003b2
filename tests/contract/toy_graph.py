"""Write a small random Llama-shaped model as a pack's graphs, with onnx and numpy only.

The graph follows the contract of `export`, so that a runtime cannot distinguish it from a real one. Weights come from a
fixed seed; `bits` 4 or 8 quantizes the projections in blocks, in the layout of MatMulNBits.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from edgedecode.pack.manifest import STACKS, Graph, ModelEntry

WEIGHTS = "weights.bin"
GRAPH = "base.onnx"


@dataclass(frozen=True, slots=True)
class ToyShape:
    """Sizes of the toy. `bits` 32 keeps float weights."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    mlp: int = 96
    rows: int = 128
    context: int = 512
    bits: int = 32
    block: int = 32
    seed: int = 7
    tree: bool = True
    """Whether the entry declares tree attention; the graph has its inputs either way."""
    window: int = 0
    """Sliding window of the even layers in positions; 0: none."""
    all_windows: bool = False
    """Whether odd layers have the window too."""

    graphs: tuple[str, ...] = ("base",)
    """Graphs to write, of base, hidden, lora and kv8, on the same weights."""
    packed: bool = False
    """Whether query, key and value are one product."""

    wide: tuple[str, ...] = ()
    """Modules whose products request 16-bit activations, by their last names, such as gate and head."""

    def level_of(self, name: str) -> int:
        """Return the accuracy level of a quantized product."""
        return 2 if name.rpartition(".")[2] in self.wide else 4

    def bias_of(self, layer: int) -> str:
        """Return the bias input of a layer."""
        return "window_bias" if self.window and (self.all_windows or layer % 2 == 0) else "attention_bias"


SCALES = "scales"
LORA_RANK = 8
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "gate_up_proj")


def cache_scales(shape: ToyShape, layer: int) -> npt.NDArray[np.float32]:
    """Return the 8-bit cache's scales per channel, [key and value, KV heads, head size]."""
    draw = np.random.default_rng(layer)
    return (draw.uniform(5.0, 8.0, (2, shape.kv_heads, shape.head_size)) / 127).astype(np.float32)


class ToyGraph:
    """Collect nodes, initializers and the contract's inputs and outputs of the graph `variant`."""

    def __init__(self, shape: ToyShape, variant: str = "base") -> None:
        self.shape, self.variant = shape, variant
        self._deltas: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(shape.seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def build(self) -> onnx.ModelProto:
        """Build the full graph with its weights inside."""
        shape = self.shape
        hidden = self._node("Gather", [self._normal("embedding", shape.rows, shape.hidden), "input_ids"], "embedded")
        for layer in range(shape.layers):
            hidden = self._layer(hidden, layer)
        hidden = self._norm(hidden, "final")
        picked = self._node("Gather", [hidden, "rows"], "picked", axis=1)
        flat = self._node("Reshape", [picked, self._tensor("flat", np.array([-1, shape.hidden]))], "hidden")
        self._project(flat, "head", shape.hidden, shape.rows, output="logits")
        graph = helper.make_graph(self._nodes, "toy", self._inputs(), self._outputs(), initializer=self._weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _layer(self, hidden: str, layer: int) -> str:
        shape, name = self.shape, f"layer{layer}"
        normed = self._norm(hidden, f"{name}.attention")
        if shape.packed:
            width = (shape.heads + 2 * shape.kv_heads) * shape.head_size
            query, key, value = self._project(normed, f"{name}.qkv", shape.hidden, width), "", ""
        else:
            query = self._project(normed, f"{name}.q", shape.hidden, shape.heads * shape.head_size)
            key = self._project(normed, f"{name}.k", shape.hidden, shape.kv_heads * shape.head_size)
            value = self._project(normed, f"{name}.v", shape.hidden, shape.kv_heads * shape.head_size)
        attended = self._attention(query, key, value, layer)
        mixed = self._project(attended, f"{name}.o", shape.heads * shape.head_size, shape.hidden)
        hidden = self._node("Add", [hidden, mixed], f"{name}.after_attention")
        normed = self._norm(hidden, f"{name}.mlp")
        gate = self._project(normed, f"{name}.gate", shape.hidden, shape.mlp)
        up = self._project(normed, f"{name}.up", shape.hidden, shape.mlp)
        silu = self._node("Mul", [gate, self._node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
        product = self._node("Mul", [silu, up], f"{name}.product")
        down = self._project(product, f"{name}.down", shape.mlp, shape.hidden)
        return self._node("Add", [hidden, down], f"{name}.output")

    def _attention(self, query: str, key: str, value: str, layer: int) -> str:
        shape = self.shape
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        rotary = ["cos", "sin"]
        if layer == 0:
            angles = np.arange(shape.context)[:, None] / 10000 ** (
                np.arange(shape.head_size // 2) * 2 / shape.head_size
            )
            self._tensor("cos", np.cos(angles).astype(np.float32))
            self._tensor("sin", np.sin(angles).astype(np.float32))
        inputs = [query, key, value, *past, "seqlens_k", "total_length", *rotary, "position_ids", shape.bias_of(layer)]
        quantized: dict[str, int | str] = {}
        if self.variant == "kv8":
            names = [
                self._tensor(f"{SCALES}.{layer}.{part}", scale.ravel())
                for part, scale in enumerate(cache_scales(shape, layer))
            ]
            inputs += ["", *names]
            quantized = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        outputs = [f"layer{layer}.attended", f"present.{layer}.key", f"present.{layer}.value"]
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                inputs,
                outputs,
                domain="com.microsoft",
                num_heads=shape.heads,
                kv_num_heads=shape.kv_heads,
                do_rotary=1,
                **quantized,
            )
        )
        return outputs[0]

    def _project(self, source: str, name: str, inner: int, outer: int, *, output: str | None = None) -> str:
        layer, _, module = name.removeprefix("layer").partition(".")
        if self.variant == "lora" and f"{module}_proj" in {*LORA_MODULES, *STACKS, *STACKS["gate_up_proj"]}:
            product = self._product(source, name, inner, outer, output=f"{name}.base")
            return self._delta(source, product, f"lora.{layer}.{module}_proj", inner, outer)
        return self._product(source, name, inner, outer, output=output or f"{name}.out")

    def _delta(self, source: str, product: str, name: str, inner: int, outer: int) -> str:
        """Add the two optional matrices of a projection, whose defaults have rank 0."""
        for part, sizes in (("a", [inner, 0]), ("b", [0, outer])):
            self._weights.append(numpy_helper.from_array(np.empty(sizes, np.float32), f"{name}.{part}"))
            named = [size or f"{name}.r" for size in sizes]
            self._deltas.append(helper.make_tensor_value_info(f"{name}.{part}", TensorProto.FLOAT, named))
        narrow = self._node("MatMul", [source, f"{name}.a"], f"{name}.narrow")
        wide = self._node("MatMul", [narrow, f"{name}.b"], f"{name}.wide")
        return self._node("Add", [product, wide], f"{name}.out")

    def _product(self, source: str, name: str, inner: int, outer: int, *, output: str) -> str:
        if self.shape.bits == 32:
            return self._node("MatMul", [source, self._normal(f"{name}.weight", inner, outer)], output)
        bits, block = self.shape.bits, self.shape.block
        blocks = -(-inner // block)
        packed = self._rng.integers(0, 256, (outer, blocks, block * bits // 8), dtype=np.uint8)
        scales = self._rng.uniform(0.5, 1.5, (outer, blocks)) / (2 ** (bits - 2) * inner**0.5)
        inputs = [source, self._tensor(f"{name}.packed", packed)]
        inputs.append(self._tensor(f"{name}.scales", scales.astype(np.float32)))
        self._nodes.append(
            helper.make_node(
                "MatMulNBits",
                inputs,
                [output],
                domain="com.microsoft",
                K=inner,
                N=outer,
                bits=bits,
                block_size=block,
                accuracy_level=self.shape.level_of(name),
            )
        )
        return output

    def _norm(self, source: str, name: str) -> str:
        scale = self._tensor(f"{name}.norm", np.ones(self.shape.hidden, np.float32))
        return self._node("SimplifiedLayerNormalization", [source, scale], f"{name}.normed", epsilon=1e-5, axis=-1)

    def _normal(self, name: str, inner: int, outer: int) -> str:
        scale = 1.0 if name == "embedding" else inner**-0.5
        return self._tensor(name, (self._rng.standard_normal((inner, outer)) * scale).astype(np.float32))

    def _tensor(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: float | int) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        biases = sorted({self.shape.bias_of(layer) for layer in range(self.shape.layers)})
        integers = [
            ("input_ids", TensorProto.INT64, [1, "S"]),
            ("position_ids", TensorProto.INT64, [1, "S"]),
            ("seqlens_k", TensorProto.INT32, [1]),
            ("total_length", TensorProto.INT32, [1]),
            *((name, TensorProto.FLOAT, [1, 1, "S", "T"]) for name in biases),
            ("rows", TensorProto.INT64, ["R"]),
        ]
        values = [helper.make_tensor_value_info(name, kind, sizes) for name, kind, sizes in integers]
        return values + self._deltas + self._cache("past_key_values", "P")

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["R", self.shape.rows])
        return [logits, *self._cache("present", "N")]

    def _cache(self, prefix: str, length: str) -> list[onnx.ValueInfoProto]:
        sizes = [1, self.shape.kv_heads, length, self.shape.head_size]
        names = [f"{prefix}.{layer}.{part}" for layer in range(self.shape.layers) for part in ("key", "value")]
        kind = TensorProto.INT8 if self.variant == "kv8" else TensorProto.FLOAT
        return [helper.make_tensor_value_info(name, kind, sizes) for name in names]


def write_toy(folder: Path, shape: ToyShape | None = None) -> ModelEntry:
    """Write the graphs and weights.bin into `folder` and return their manifest entry."""
    shape = shape or ToyShape()
    folder.mkdir(parents=True, exist_ok=True)
    graphs = {name: _write_graph(folder, shape, name) for name in shape.graphs}
    parameters = sum(int(np.prod(tensor.dims)) for tensor in ToyGraph(shape).build().graph.initializer)
    return ModelEntry(
        architecture="toy",
        rows=shape.rows,
        context=shape.context,
        hidden_size=shape.hidden,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        parameters=parameters,
        weights=WEIGHTS,
        graphs=graphs,
        bits=shape.bits,
        block_size=shape.block if shape.bits < 16 else 0,
        head_bits=shape.bits,
        window=shape.window,
        license="Apache-2.0",
        source=f"seed {shape.seed}, {hashlib.sha256(repr(shape).encode()).hexdigest()[:12]}",
    )


def _write_graph(folder: Path, shape: ToyShape, name: str) -> Graph:
    """Write one graph, and the weights again, which are the same bytes for every graph."""
    model = ToyGraph(shape, name).build()
    more = {"base": (), "lora": ("lora",), "kv8": ()}[name]
    graph = Graph(
        file=f"{name}.onnx",
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        capabilities=(*(("tree", "rows") if shape.tree else ("rows",)), *more),
        kv_type="int8" if name == "kv8" else "float32",
        lora_rank=LORA_RANK if name == "lora" else 0,
        lora_modules=LORA_MODULES if name == "lora" else (),
    )
    weights = folder / WEIGHTS
    before = weights.read_bytes() if weights.exists() else None
    weights.unlink(missing_ok=True)
    convert_model_to_external_data(model, location=WEIGHTS, size_threshold=256)
    for tensor in model.graph.initializer:
        if tensor.name.startswith(SCALES):  # in this graph only
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
    onnx.save(model, folder / graph.file)
    assert before in (None, weights.read_bytes())
    return graph
