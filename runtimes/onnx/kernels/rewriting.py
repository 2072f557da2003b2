"""Replaces a graph's operators by ours, in memory: the pack keeps the standard graph for other engines and providers.

Nodes that we do not replace stay the engine's. They determine whether the graph is row-invariant: operators that only
move data or apply single IEEE operations to each value keep it so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import AttributeValue, Node, RawAttribute

from .joins import is_plain, join_biases, join_deltas, join_gates, narrow_ranks
from .library import KernelLibrary
from .products import (
    DOMAIN,
    FLOAT,
    FLOAT_ACTIVATIONS,
    UINT8,
    NotServed,
    Stored,
    Weights,
    matrix_attributes,
    planes_of,
    product_node,
    serves_head,
    tile_offsets,
)

Attributes = Mapping[str, AttributeValue]
PARENTS = "tree_parents"
"""int32 [pending rows, or 0 for a chain]: each pending row's parent, -1 for the last settled position."""
TILES, GRAPH_TILES = "tiles", "graph_tiles"
"""uint8 [bytes]: the matrices of the weights file and of the graph file, as tiles."""
GIVEN_TILES = "given_tiles"
"""uint8 [bytes]: the tiles of another model, for matrices that both read."""
RECURRENT = "edgedecode.recurrent"
"""The domain of recurrent operators in graphs made here: they are ours, and no other engine has them."""
PICKS = 14
"""The input of an attention node that only reads keys and values, or of a `BLOCK`: the rows that have queries."""
BLOCK = "block"
"""Attribute of an attention node in a graph made here: its queries see all rows of the pass."""
_INT32, _INT64, _INT8 = 6, 7, 3
_FUNCTIONS = 25
"""Field number of a model's functions in onnx.proto."""
_FULL_BIAS, _WINDOW_BIAS = "attention_bias", "window_bias"
_POINTWISE = {"Sigmoid": 0, "FastGelu": 2, "Gelu": 2, "Tanh": 3}
_MOVES = "Cast Concat Constant ConstantOfShape Expand Gather GatherBlockQuantized Identity Range Reshape Shape Slice"
_MORE_MOVES = "Split Squeeze Transpose Unsqueeze Where"
_EXACT = frozenset(f"{_MOVES} {_MORE_MOVES} Add Div Mul Neg Sub".split())
"""Engine operators that only move values or round each value separately, and so keep rows invariant."""
_KEPT = ("num_heads", "kv_num_heads", "rotary_interleaved", "softcap", BLOCK)


_INPUTS = {
    **dict.fromkeys(("FastGelu", "Gelu", "Sigmoid", "Tanh"), 1),
    **dict.fromkeys(("Add", "MatMul", "Mul", "RMSNormalization", "SimplifiedLayerNormalization"), 2),
    **dict.fromkeys(("GatherBlockQuantized", "MatMulNBits", "SkipSimplifiedLayerNormalization"), 3),
}
"""The operators' required inputs, which are read here by position."""


@dataclass(slots=True)
class Rewritten:
    """The rewritten graph for the engine, and the matrices that it reads as tiles, by initializer."""

    data: bytes = b""
    stored: dict[str, Stored] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    """The attention-bias inputs that `PARENTS` replaces, of layers with full attention and with a window."""
    left: Counter[str] = field(default_factory=Counter)
    """Number of the engine's remaining operators whose bits may depend on the number of rows, by operator."""
    narrow_ranks: int = 0
    """The most partial sums that a product holds per row for adapters, in multiples of the graph's rank."""
    unserved: Counter[str] = field(default_factory=Counter)
    """Number of the quantized products in `left` that allow rounded activations, by the reason why they were not
    replaced; our kernels would be faster."""
    table: str = ""
    """The matrix in `stored` that is the embedding; empty: the engine reads it."""

    @property
    def row_invariant(self) -> bool:
        return not self.left

    def sources(self) -> dict[str, list[Stored]]:
        """Return the matrices by the graph input of their tiles, `TILES` or `GRAPH_TILES`."""
        found: dict[str, list[Stored]] = {}
        for _, stored in sorted(self.stored.items()):
            source = GRAPH_TILES if stored.offsets is None else TILES
            found.setdefault(source if stored.given is None else GIVEN_TILES, []).append(stored)
        return found


def rewrite(file: GraphFile, library: KernelLibrary, weights: Weights, *, window: int, threads: int) -> Rewritten:
    """Return the graph with our operators. Raises NotServed if our attention cannot replace its attention.

    window: the attention window of layers with one, in positions.
    """
    if _may_contain_ours(file):  # only graphs rewritten here may; the engine refuses those of packs
        raise NotServed("it names our operators, or holds functions or graphs that may")
    _check_nodes(file)
    work = _Rewriting(file, library, weights, window=window, threads=threads)
    work.attention()
    work.recurrent()
    work.norms()
    work.products()
    work.embeddings()
    join_gates(file)
    work.rest()
    return work.finish()


def _may_contain_ours(file: GraphFile) -> bool:
    """Return whether a graph uses our operators, or may use them in functions or inner graphs, which are not parsed."""
    if DOMAIN in file.opset or any(number == _FUNCTIONS for number, _ in file.model_rest):
        return True
    hidden = (value for node in file.nodes for value in node.attributes.values() if isinstance(value, RawAttribute))
    return any(node.domain == DOMAIN or node.op_type == "RowsProduct" for node in file.nodes) or any(
        DOMAIN.encode() in value.encoded for value in hidden
    )


def _check_nodes(file: GraphFile) -> None:
    """Raise NotServed for a node without the inputs and outputs that its operator requires: the engine refuses it."""
    for node in file.nodes:
        pair = node.op_type in ("Add", "Mul") and len(node.inputs) > _INPUTS["Add"]
        if pair or len(node.inputs) < _INPUTS.get(node.op_type, 0) or not node.outputs:
            raise NotServed(f"its node {node.name[:60]!r} lacks inputs or outputs of {node.op_type[:40]}")


class _Rewriting:
    def __init__(self, file: GraphFile, library: KernelLibrary, weights: Weights, *, window: int, threads: int) -> None:
        self._file, self._library, self._weights = file, library, weights
        self._window, self._threads = window, threads
        self._kv_width = 0
        self._made = Rewritten()

    def attention(self) -> None:
        """Replace all attention nodes. Raises NotServed if there are none, or one has another form."""
        nodes = [node for node in self._file.nodes if node.op_type == "GroupQueryAttention"]
        if not nodes:
            raise NotServed("it has no attention that our kernels support")
        for node in nodes:
            self._file.nodes[self._file.nodes.index(node)] = self._tree_attention(node)
        names = {_FULL_BIAS, _WINDOW_BIAS}
        place = min(i for i, value in enumerate(self._file.inputs) if value.name in names)
        self._made.biases = tuple(value.name for value in self._file.inputs if value.name in names)
        self._file.inputs[:] = [value for value in self._file.inputs if value.name not in names]
        self._file.inputs.insert(place, ValueInfo(PARENTS, _INT32, ["A"]))

    def recurrent(self) -> None:
        """Take over recurrent operators, whose inputs and outputs are those of ours."""
        for index, node in enumerate(self._file.nodes):
            if node.domain == RECURRENT:
                self._replace(index, node.op_type, node.inputs, node.outputs, node.attributes)

    def norms(self) -> None:
        """Replace RMS norms, including those fused with a preceding addition."""
        for index, node in enumerate(self._file.nodes):
            if node.op_type in ("SimplifiedLayerNormalization", "RMSNormalization"):
                inputs, outputs, weight = node.inputs[:2], node.outputs[:1], node.inputs[1]
            elif node.op_type == "SkipSimplifiedLayerNormalization" and not any(node.inputs[3:]):
                weight = node.inputs[2]
                inputs = [node.inputs[0], weight, node.inputs[1]]
                outputs = [node.outputs[0], *node.outputs[3:4]]
            else:
                continue
            tensor = self._file.initializers.get(weight)
            if tensor is None or tensor.data_type != FLOAT or len(tensor.dims) != 1 or any(node.outputs[1:3]):
                continue
            epsilon = node.attributes.get("epsilon")
            if not isinstance(epsilon, float) or node.attributes.get("axis", -1) != -1:
                continue
            self._replace(index, "RowsNorm", inputs, [name for name in outputs if name], {"epsilon": epsilon})

    def products(self) -> None:
        """Replace products with quantized matrices, including the addition of a bias after them."""
        for index, node in enumerate(self._file.nodes):
            if node.op_type != "MatMulNBits":
                continue
            stored = self._weights.read(node, self._file, self._library)
            if isinstance(stored, str):
                self._made.left[node.op_type] += 1
                if stored != FLOAT_ACTIVATIONS:
                    self._made.unserved[stored] += 1
                continue
            self._made.stored[stored.name] = stored
            self._file.nodes[index] = product_node(
                [node.inputs[0], stored.name, *node.inputs[5:6]],
                node.outputs[0],
                matrix=stored.matrix,
                inner=stored.inner,
                threads=self._threads,
                planes=planes_of(node),
                name=node.name,
            )
        join_biases(self._file)
        join_deltas(self._file, kv_width=self._kv_width)

    def embeddings(self) -> None:
        """Read the rows of an embedding from tiles; the engine keeps the array of one without."""
        ids = {value.name for value in self._file.inputs if value.elem_type == _INT64}
        for index, node in enumerate(self._file.nodes):
            if node.op_type != "GatherBlockQuantized" or node.inputs[1] not in ids or any(node.inputs[3:]):
                continue
            table = self._weights.table(node, self._file, self._made.stored, self._library)
            if table is not None:
                self._made.stored.setdefault(table.name, table)
                self._made.table = table.name
                sizes: Attributes = {"inner": table.inner, **matrix_attributes(table.matrix)}
                self._replace(index, "TileRows", [node.inputs[1], table.name], node.outputs, sizes)

    def rest(self) -> None:
        """Replace activations and the small float products of adapters; count the engine's remaining operators."""
        for index, node in enumerate(self._file.nodes):
            if node.domain == DOMAIN:
                continue
            if node.op_type in _POINTWISE and is_plain(node):
                kind = {"kind": _POINTWISE[node.op_type]}
                self._replace(index, "RowsPointwise", node.inputs[:1], node.outputs, kind)
            elif node.op_type == "MatMul" and node.inputs[1].startswith("lora."):
                self._replace(index, "FloatProduct", node.inputs, node.outputs, {})
            elif node.op_type not in _EXACT and node.op_type != "MatMulNBits":
                self._made.left[node.op_type] += 1

    def finish(self) -> Rewritten:
        """Drop unused initializers, add the inputs of the tiles, and serialise the graph."""
        inputs = {value.name for value in self._file.inputs}
        read = {name for node in self._file.nodes for name in node.inputs} | inputs
        self._file.initializers = {name: each for name, each in self._file.initializers.items() if name in read}
        self._file.opset[DOMAIN] = 1
        self._made.stored = {name: each for name, each in self._made.stored.items() if name in read}
        for source, stored in self._made.sources().items():
            places = {each.name: each.given for each in stored if each.given is not None}
            places = places or tile_offsets(self._library, stored)
            self._file.inputs.append(ValueInfo(source, UINT8, [f"{source}_nbytes"]))
            for node in self._file.nodes:
                self._place(node, source, places)
        if self._made.left:  # share the engine's thread pool: two pools would wait for each other
            for node in self._file.nodes:
                if node.domain == DOMAIN:
                    node.attributes["engines_pool"] = 1
        self._made.narrow_ranks = max(map(narrow_ranks, self._file.nodes), default=0)
        self._made.data = self._file.serialize()
        return self._made

    def _place(self, node: Node, source: str, places: Mapping[str, int]) -> None:
        """Replace a product's matrices by offsets into the input of all tiles."""
        if node.op_type not in ("RowsProduct", "TileRows"):
            return
        for index, attribute in ((1, "offset"), (3, "up_offset")):
            if index < len(node.inputs) and node.inputs[index] and node.inputs[index] in places:
                node.attributes[attribute] = places[node.inputs[index]]
                node.inputs[index] = source

    def _tree_attention(self, node: Node) -> Node:
        """Return our replacement for an attention node. Raises NotServed if our kernels do not support its form."""
        inputs = [*node.inputs, *[""] * (PICKS + 1 - len(node.inputs))]
        shared = len(node.outputs) == 1
        attributes = node.attributes
        block = attributes.get(BLOCK, 0) != 0
        types = {value.name: value for value in (*self._file.outputs, *self._file.inputs)}
        cache, values = types.get(inputs[3]), types.get(inputs[4])
        size = cache.dims[-1] if cache is not None and cache.dims else None
        if cache is None or values is None or values.elem_type != cache.elem_type:
            raise NotServed("its keys and values are no inputs of one type")
        if not serves_head(size):
            raise NotServed(f"its head size is {size}")
        if (
            not inputs[9]
            or inputs[11]
            or (shared and any(inputs[1:3]))
            or (block and not all((*inputs[1:3], inputs[PICKS], not shared)))
            or any(inputs[PICKS + (shared or block) :])
            or any(node.outputs[3:])
        ):
            raise NotServed("its attention has no positions, or other inputs and outputs")
        if attributes.get("local_window_size", -1) != -1 or attributes.get("smooth_softmax", 0) not in (0, -1):
            raise NotServed("its attention has a window or sinks of its own")
        if inputs[10] not in (_FULL_BIAS, _WINDOW_BIAS) or inputs[10] not in types:
            raise NotServed("its attention has no bias for trees")
        int8 = cache.elem_type == _INT8
        by_channel = all(attributes.get(f"{each}_quant_type") == b"PER_CHANNEL" for each in "kv")
        if (int8 and not by_channel) or cache.elem_type not in (FLOAT, _INT8):
            raise NotServed("its keys and values are stored in another type")
        rotated = attributes.get("do_rotary", 0) == 1
        scale = attributes.get("scale", 0.0) or size**-0.5
        more = [*(inputs[12:PICKS] if int8 else ("", "")), inputs[PICKS]]
        kept = {name: attributes[name] for name in _KEPT if name in attributes}
        if isinstance(heads := attributes.get("kv_num_heads"), int):
            self._kv_width = heads * size
        return Node(
            "TreeAttentionInt8" if int8 else "TreeAttention",
            DOMAIN,
            node.name,
            [
                *inputs[:5],
                inputs[6],
                *(inputs[7:9] if rotated else ("", "")),
                inputs[9],
                PARENTS,
                *(more if any(more) else ()),
            ],
            node.outputs[:3],
            {
                **kept,
                "scale": scale,
                "window": self._window if inputs[10] == _WINDOW_BIAS else 0,
                "shared": int(shared),
                "threads": self._threads,
            },
        )

    def _replace(
        self, index: int, kind: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Attributes
    ) -> None:
        node = self._file.nodes[index]
        more: Attributes = {**attributes, "threads": self._threads}
        self._file.nodes[index] = Node(kind, DOMAIN, node.name, list(inputs), list(outputs), dict(more))
