"""Writes the standard graph of a GGUF model in memory, with the nodes that export writes and `rewrite` replaces.

Matrices are not part of the graph: a product names the tensors it reads (see `GgufWeights`).
"""

import math
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from edgedecode.adapters.gguf_adapter import joins_attention
from edgedecode.arrays import FloatArray
from edgedecode.gguf.architectures import AFTER_NORMS, ATTENTION, CONVOLUTION, HEAD_NORMS, PER_LAYER_TABLE
from edgedecode.gguf.header import EMBEDDING, OUTPUT
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node

from ..graph_session import FULL_BIAS, HIDDEN, LAYER_ROWS, ROTARY, ROW_NUMBERS, SCALARS, WINDOW_BIAS
from ..kernels.products import FLOAT, serves_head
from ..kernels.rewriting import PICKS
from ..recurrence import KEPT_ROWS
from .graph_writer import INT64, MICROSOFT
from .metadata import GATED, Layer, Metadata
from .recurrent_layers import RecurrentLayers
from .rotation import FACTORS, factors_name, rotary_tables
from .weights import GgufWeights

_INT8, _INT32 = 3, 6
_OPSET = {"": 22, MICROSOFT: 1}
_IR_VERSION = 10
_SCALAR_TYPES = {"seqlens_k": _INT32, "total_length": _INT32}


def build_graph(
    metadata: Metadata,
    weights: GgufWeights,
    *,
    context: int,
    adapters: bool = False,
    squares: bool = False,
    hidden: bool = False,
    every_row: bool = False,
    kv_scales: FloatArray | None = None,
) -> GraphFile:
    """Return the graph. Raises NotServed for what it does not compute, ManifestError for tensors that the file lacks.

    adapters: each product of a layer takes a delta, as in graphs of `export --graphs lora`.
    squares: for each matrix of a layer, it has an output with the sums of its input's squares, all rows included.
    hidden: it has an output with the picked rows before the last product.
    every_row: layers that read other layers' keys and values compute all rows, not only the picked ones.
    kv_scales: those of 8-bit keys and values, [caches, KV heads, head size]; None: they are float32.
    """
    check_tensors(metadata, weights)
    network = Network(metadata, weights, context=context, adapters=adapters, squares=squares, kv_scales=kv_scales)
    network.every_row = squares or every_row
    network.write(hidden=hidden)
    weights.check_all_used()
    return network.file


def check_tensors(metadata: Metadata, weights: GgufWeights) -> None:
    """Refuse tensors that are not known or have other sizes, and files without the norms of their architecture."""
    layers = metadata.every_layer
    for size in (layer.head_size for layer in layers if layer.mixer == ATTENTION):
        if not serves_head(size):
            weights.refuse(f"its head size is {size}")
    if metadata.architecture.recurrent in GATED and (fault := metadata.recurrence.fault):
        weights.refuse(fault)
    if metadata.integer("expert_count") and metadata.name == "gemma4":
        weights.refuse("it is a mixture of experts")
    shared = {f"blk.{index}." for index, layer in enumerate(layers) if layer.source != index}
    unread = {f"{part}{name}.weight" for part in shared for name in ("attn_k", "attn_v", "attn_k_norm")}
    tensors = {
        name: each
        for name, each in metadata.contents.tensors.items()
        if not metadata.is_draft(name) and name not in unread
    }
    weights.leave_out(metadata.contents.tensors.keys() - tensors.keys())
    if unknown := next((name for name in tensors if not metadata.knows(name)), None):
        weights.refuse(f"it has the tensor {unknown[:60]}, which its architecture does not use here")
    for name, tensor in tensors.items():
        if fault := metadata.shape_fault(name, tensor.shape):
            weights.damaged(fault)
    for (index, layer), norm in product(enumerate(layers), metadata.architecture.norms):
        if f"blk.{index}.{norm}.weight" not in unread and (layer.mixer == ATTENTION or norm not in HEAD_NORMS):
            weights.vector(f"blk.{index}.{norm}.weight")


@dataclass(slots=True)
class Network(RecurrentLayers):
    """The whole graph. Methods append nodes, and return the names of their results."""

    temperature: str = field(default="", init=False)
    """By what the queries of each row are multiplied, in all layers; empty: by nothing so far."""
    every_row: bool = field(default=False, init=False)
    """Whether all layers compute all rows."""

    def begin(self) -> None:
        """Write everything before the nodes."""
        self.file.opset = dict(_OPSET)
        self.file.model_rest = [(1, bytes((1 << 3, _IR_VERSION)))]
        self._interface()
        self._rotations()

    def write(self, *, hidden: bool = False) -> None:
        self.begin()
        shape = self.metadata
        x, y = self._embedding(), ""
        embedded, picked = x, self._first_picked()
        self._per_layer_inputs(embedded, range(picked))
        for layer in range(len(self.layers)):
            if layer == picked:  # from here on, layers write no keys and values that other rows would read
                self._per_layer_inputs(embedded, range(picked, len(self.layers)), picked=True)
                x, y = self._picked(x, y)
            x, y = self._layer(x, y, layer)
        if self.squares:
            x, y = self._picked(x, y)
        x, _ = self._sum_norm(x, y, f"{shape.architecture.final_norm}.weight")
        first = self._constant(np.array([0], np.int64))
        if hidden:
            self._node("Squeeze", [x, first])
            self.file.nodes[-1].outputs = [HIDDEN]
            self.file.outputs.append(ValueInfo(HIDDEN, FLOAT, ("R", shape.hidden)))
        x = self._node("Squeeze", [x, first])
        logits = self._product(x, [(OUTPUT if self.weights.has(OUTPUT) else EMBEDDING, None)])
        scale = shape.number("logit_scale", 1.0)
        cap = shape.cap("final_logit_softcapping", shape.architecture.logits_cap)
        last = self._scaled(self._scaled(logits, 1 / scale), 1 / cap if cap else 1.0)
        if cap:
            last = self._scaled(self._node("Tanh", [last]), cap)
        self._rename(last, "logits")

    def _interface(self) -> None:
        attention = {index: layer for index, layer in enumerate(self.layers) if layer.mixer == ATTENTION}
        owners = [(index, layer) for index, layer in attention.items() if layer.source == index]
        caches = [(f"{index}.{part}", layer) for index, layer in owners for part in ("key", "value")]
        windows = {layer.window for layer in attention.values()}
        biases = [name for name, used in ((FULL_BIAS, False in windows), (WINDOW_BIAS, True in windows)) if used]
        kind = FLOAT if self.kv_scales is None else _INT8
        self.file.inputs = [
            *(ValueInfo(name, _SCALAR_TYPES.get(name, INT64), _scalar_dims(name)) for name in SCALARS),
            *(ValueInfo(name, FLOAT, (1, 1, "S", "T")) for name in biases),
            *([ValueInfo(KEPT_ROWS, _INT32, ("K",))] if len(attention) < len(self.layers) else []),
            *(
                ValueInfo(f"past_key_values.{name}", kind, (1, layer.kv_heads, "P", layer.head_size))
                for name, layer in caches
            ),
            *([ValueInfo(LAYER_ROWS, FLOAT, (1, "S", self.metadata.per_layer * len(self.layers)))] * self._has_table),
        ]
        self.file.outputs = [
            ValueInfo("logits", FLOAT, ("R", self._rows)),
            *(ValueInfo(f"present.{name}", kind, (1, layer.kv_heads, "N", layer.head_size)) for name, layer in caches),
        ]

    @property
    def _has_table(self) -> bool:
        """Whether there are per-layer embeddings."""
        return self.metadata.per_layer > 0 and self.weights.columns(PER_LAYER_TABLE) > 0

    @property
    def _rows(self) -> int:
        """The width of the logits."""
        return self.weights.columns(EMBEDDING)

    def _rotations(self) -> None:
        factors = {name: self.weights.vector(name).astype(np.float64) for name in FACTORS if self.weights.has(name)}
        divided = factors.get(factors_name(self.metadata))
        rotated = self.metadata.integer("rope.dimension_count", self.metadata.head_size)
        if divided is not None and len(divided) != rotated // 2:
            self.weights.refuse(
                f"{factors_name(self.metadata)} has {len(divided)} values for {rotated // 2} frequencies"
            )
        by_pass = self.metadata.architecture.rotated_by_pass
        positions = np.arange(1 if by_pass else self.context)
        for window in (False, True) if self.metadata.architecture.own_window_rotation else (False,):
            tables = rotary_tables(self.metadata, factors, positions=positions, window=window)
            for name, table in zip(ROTARY, tables, strict=True):
                if by_pass:  # one row for each of a pass, see `PassValues`
                    self.file.inputs.append(ValueInfo(_cache(name, window=window), FLOAT, ("S", table.shape[1])))
                else:
                    self._initializer(_cache(name, window=window), table)
        if by_pass:
            self.file.inputs.append(ValueInfo(ROW_NUMBERS, INT64, (1, "S")))

    def _embedding(self) -> str:
        name, shape = EMBEDDING, self.metadata
        self.weights.check_served(name)
        x = self._node("GatherBlockQuantized", [self.weights.joined([(name, None)]), "input_ids", ""], domain=MICROSOFT)
        scale = math.sqrt(shape.hidden) if shape.architecture.scaled_embedding else 1.0
        return self._scaled(x, shape.number("embedding_scale", scale))

    def _layer(self, x: str, y: str, layer: int) -> tuple[str, str]:
        """Return the layer's sums and its last product, for inputs x + y likewise."""
        part = f"blk.{layer}."
        normed, x = self._sum_norm(x, y, f"{part}attn_norm.weight")
        y, output = self._mixed(normed, layer)
        if layer == len(self.layers) - 1 and self._picks_last:  # from here on, only the picked rows matter
            x, y = self._picked(x, y)
        y = self._product(y, [(f"{part}{output}.weight", None)])
        after, norm = AFTER_NORMS[0], self.metadata.architecture.mlp_norm
        y = self._residual(y, f"{part}{after}.weight" if norm != after else "")
        normed, x = self._sum_norm(x, y, f"{part}{norm}.weight")
        y = self._residual(self._gated(normed, part), f"{part}post_ffw_norm.weight")
        return self._with_per_layer(x, y, layer)

    def _first_picked(self) -> int:
        """Return the first of the layers that compute picked rows only: from it on, none has keys of its own."""
        own = max(index for index, layer in enumerate(self.layers) if layer.source == index)
        return len(self.layers) if self.every_row else own + 1

    def _per_layer_inputs(self, x: str, layers: range, *, picked: bool = False) -> None:
        """Write what these layers read of both embeddings of a token, [1, rows, values] each.

        x: the first embedding. picked: for the picked rows only.
        """
        size = self.metadata.per_layer
        if not size or not layers:
            return
        self.weights.check_served(PER_LAYER_TABLE)
        parts = [LAYER_ROWS] if len(layers) == len(self.layers) else [f"{LAYER_ROWS}.own", f"{LAYER_ROWS}.rest"]
        if len(parts) > 1 and not picked:
            sizes = self._constant(np.array([len(layers) * size, (len(self.layers) - len(layers)) * size], np.int64))
            self.file.nodes.append(Node("Split", "", LAYER_ROWS, [LAYER_ROWS, sizes], parts, {"axis": -1}))
        second = parts[picked]
        if picked:
            x, second = self._picked(x, second)
        first = self._product(x, [("per_layer_model_proj.weight", (layers.start * size, len(layers) * size))])
        both = self._node("Add", [self._projection_norm(first, count=len(layers), size=size), second])
        names = [f"per_layer.{index}" for index in layers]
        self.file.nodes.append(Node("Split", "", names[0], [both], names, {"axis": -1, "num_outputs": len(layers)}))

    def _projection_norm(self, x: str, *, count: int, size: int) -> str:
        """Return the norm of each layer's part of a product by the root of the hidden size, by the root of 2."""
        name, epsilon = "per_layer_proj_norm.weight", self.metadata.number("attention.layer_norm_rms_epsilon", 1e-5)
        weight = self._initializer(name, self.weights.vector(name) * np.float32(math.sqrt(0.5)))
        heads = self._node("Reshape", [x, self._constant(np.array([0, 0, count, size], np.int64))])
        sizes = {"epsilon": epsilon * self.metadata.hidden, "axis": -1}  # as if the product were divided by the root
        return self._flat(self._node("SimplifiedLayerNormalization", [heads, weight], sizes), width=count * size)

    def _with_per_layer(self, x: str, y: str, layer: int) -> tuple[str, str]:
        """Return the layer's result for sums and a last product, with what it makes of its own embedding."""
        part, own = f"blk.{layer}.", f"per_layer.{layer}"
        if self.metadata.per_layer:
            if layer == len(self.layers) - 1 and self._picks_last:
                own = self._picked(own)[0]
            x = self._node("Add", [x, y])
            gate = self._node("Gelu", [self._product(x, [(f"{part}inp_gate.weight", None)])], {"approximate": b"tanh"})
            y = self._product(self._node("Mul", [gate, own]), [(f"{part}proj.weight", None)])
            y = self._norm(y, f"{part}post_norm.weight")
        if not self.weights.has(f"{part}layer_output_scale.weight"):
            return x, y
        factor = float(self.weights.vector(f"{part}layer_output_scale.weight")[0])
        return self._scaled(self._node("Add", [x, y]), factor), ""

    @property
    def _picks_last(self) -> bool:
        """Whether the last layer picks the rows that matter, behind its keys and values."""
        return not self.squares and self._first_picked() == len(self.layers)

    def _mixed(self, x: str, layer: int) -> tuple[str, str]:
        """Return what a layer computes of its own and earlier rows, and the matrix that it is multiplied by."""
        if self.layers[layer].mixer == CONVOLUTION:
            return self._convolution(x, layer), "shortconv.out_proj"
        if self.layers[layer].mixer != ATTENTION:
            return self._gated_recurrence(x, layer), "ssm_out"
        if not self.metadata.architecture.gated:
            return self._attention(self._projections(x, layer), layer), "attn_output"
        both, *rest = self._projections(x, layer)
        query, gate = self._halves(both, size=self.layers[layer].head_size)
        width = self.layers[layer].queries
        query = self._norm(query, f"blk.{layer}.attn_q_norm.weight")
        y = self._attention([self._flat(query, width=width), *rest], layer)
        return self._node("Mul", [y, self._node("Sigmoid", [self._flat(gate, width=width)])]), "attn_output"

    def _halves(self, x: str, *, size: int) -> list[str]:
        """Return the first and second half of each head of 2 · size values."""
        heads = self._node("Reshape", [x, self._constant(np.array([0, 0, -1, 2 * size], np.int64))])
        first = self._node("Split", [heads], {"axis": -1, "num_outputs": 2})
        self.file.nodes[-1].outputs.append(f"{first}.second")
        return self.file.nodes[-1].outputs

    def _flat(self, x: str, *, width: int) -> str:
        return self._node("Reshape", [x, self._constant(np.array([0, 0, width], np.int64))])

    def _picked(self, *names: str) -> list[str]:
        """Return the picked rows of each value; an empty name is none."""
        return [self._node("Gather", [name, "rows"], {"axis": 1}) if name else "" for name in names]

    def _attention(self, projections: list[str], layer: int) -> str:
        shape, facts, part = self.metadata, self.layers[layer], f"blk.{layer}."
        own = facts.window and shape.architecture.own_window_rotation
        tables = [_cache(name, window=own) for name in ROTARY] if facts.rotated else ["", ""]
        positions = ROW_NUMBERS if shape.architecture.rotated_by_pass else "position_ids"
        cap = shape.cap("attn_logit_softcapping", shape.architecture.attention_cap)
        y = f"{part}attention"
        inputs = [
            *self._tempered(projections, facts),
            *self._cache_names(layer),
            *("seqlens_k", "total_length", *tables, positions, WINDOW_BIAS if facts.window else FULL_BIAS),
        ]
        attributes: dict[str, int | float | bytes] = {
            "num_heads": facts.heads,
            "kv_num_heads": facts.kv_heads,
            "scale": shape.score_scale,
            "softcap": cap,
            "do_rotary": int(facts.rotated),
            "rotary_interleaved": int(shape.architecture.interleaved),
        }
        if self.kv_scales is not None:
            place = 2 * sum(each.mixer == ATTENTION for each in self.layers[:layer])
            key, value = (each.reshape(-1) for each in self.kv_scales[place : place + 2])
            inputs += ["", self._initializer(f"{y}.key_scale", key), self._initializer(f"{y}.value_scale", value)]
            attributes |= dict.fromkeys(("k_quant_type", "v_quant_type"), b"PER_CHANNEL") | {"kv_cache_bit_width": 8}
        if layer >= self._first_picked():
            inputs += [*[""] * (PICKS - len(inputs)), "rows"]
        outputs = [y, *(f"present.{layer}.{name}" for name in ("key", "value") if facts.source == layer)]
        self.file.nodes.append(Node("GroupQueryAttention", MICROSOFT, y, inputs, outputs, dict(attributes)))
        return y

    def _cache_names(self, layer: int) -> list[str]:
        """Return the names of the keys and values that a layer reads, before it adds its own if it has any."""
        source = self.layers[layer].source
        past = "past_key_values" if source == layer else "present"
        return [f"{past}.{source}.{name}" for name in ("key", "value")]

    def _projections(self, x: str, layer: int) -> list[str]:
        """Return queries, keys and values, or the one product of all three and two empty names."""
        part, facts = f"blk.{layer}.", self.layers[layer]
        size, counts = facts.head_size, (facts.heads, facts.kv_heads, facts.kv_heads)
        if self.weights.has(f"{part}attn_qkv.weight"):
            return [self._product(x, [(f"{part}attn_qkv.weight", None)]), "", ""]
        names = [f"{part}attn_{each}" for each in "qkv"]
        if facts.source != layer:
            query = self._product(x, [(f"{names[0]}.weight", None)])
            return [self._head_norm(query, f"{names[0]}_norm.weight", count=facts.heads, size=size), "", ""]
        normed = self.weights.has(f"{part}attn_q_norm.weight")
        matrices = [f"{name}.weight" for name in names]
        if joins_attention(self.metadata.contents.tensors, part):
            return [self._product(x, [(name, None) for name in matrices]), "", ""]
        made = [self._product(x, [(name, None)]) for name in matrices if self.weights.has(name) or name != matrices[2]]
        made = [*made, made[1]][:3]
        if self.metadata.architecture.normed_values:
            made[2] = self._head_norm(made[2], "", count=facts.kv_heads, size=size)
        for index in range(self.metadata.architecture.gated, 2 if normed else 0):  # gates are split off first
            made[index] = self._head_norm(made[index], f"{names[index]}_norm.weight", count=counts[index], size=size)
        return made

    def _tempered(self, made: list[str], facts: Layer) -> list[str]:
        """Return projections whose queries are multiplied by the number of their position, if the model has any."""
        factors = self.metadata.temperatures(self.context)
        if factors is None:
            return made
        if not made[1]:
            joined, (sizes, split) = made[0], (f"{made[0]}.sizes", f"{made[0]}.split")
            self._initializer(sizes, np.array([facts.queries, facts.keys, facts.keys], np.int64))
            made = [f"{joined}.{each}" for each in "qkv"]
            self.file.nodes.append(Node("Split", "", split, [joined, sizes], made, {"axis": -1}))
        if not self.temperature:  # the same in all layers
            table = self._initializer("temperatures", factors[:, None])
            self.temperature = self._node("Gather", [table, "position_ids"], {"axis": 0})
        return [self._node("Mul", [made[0], self.temperature]), *made[1:]]

    def _head_norm(self, x: str, weight: str, *, count: int, size: int) -> str:
        """Return the norms of each head; weight: empty, if it has none."""
        heads = self._node("Reshape", [x, self._constant(np.array([0, 0, count, size], np.int64))])
        weight = weight or self._initializer(f"ones.{size}", np.ones(size, np.float32))
        return self._flat(self._norm(heads, weight), width=count * size)

    def _gated(self, x: str, part: str) -> str:
        up, gate = f"{part}ffn_up.weight", f"{part}ffn_gate.weight"
        stacked = not self.weights.has(gate)
        half = self.weights.columns(up) // 2
        first = self._product(x, [(up, (0, half)) if stacked else (gate, None)])
        second = self._product(x, [(up, (half, half)) if stacked else (up, None)])
        if self.metadata.architecture.gelu:
            active = self._node("Gelu", [first], {"approximate": b"tanh"})
        else:
            active = self._node("Mul", [first, self._node("Sigmoid", [first])])
        return self._product(self._node("Mul", [active, second]), [(f"{part}ffn_down.weight", None)])


def _scalar_dims(name: str) -> tuple[int | str, ...]:
    return ("R",) if name == "rows" else (1,) if name in _SCALAR_TYPES else (1, "S")


def _cache(name: str, *, window: bool) -> str:
    return f"{name}{'.window' if window else ''}"
