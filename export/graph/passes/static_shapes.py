"""Turns a finished base graph into a static one: fixed rows, fixed past slots, and operators that NPUs can run.

A static graph gets all visibility from one mask, so it serves chains and trees. It returns only the new rows of the
cache: which of them are kept, and where, is the runtime's business.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import STACKS
from edgedecode.pack.static_graphs import MASK, WINDOW_MASK, head_rows

from .picked_rows import head_of
from .rewriter import Rewriter
from .surgery import add_input, attention_nodes

_OPSET = 23  # RMSNormalization and RotaryEmbedding
_BIASES = {"attention_bias": MASK, "window_bias": WINDOW_MASK}
_ORDER = ("input_ids", "position_ids", MASK, WINDOW_MASK, "rows")
_SCALARS = ("seqlens_k", "total_length")
_NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
_SINK = 11  # first of GroupQueryAttention's inputs that no base graph uses
_SKIP_SUM = 3


@dataclass(frozen=True, slots=True)
class StaticSize:
    """Rows of a pass, past slots, and the rank of adapter inputs (0: the graph has none)."""

    width: int
    slots: int
    rank: int = 0

    @property
    def head_rows(self) -> int:
        """How many of the pass's rows get logits."""
        return head_rows(self.width)


def static_shapes(model: ir.Model, size: StaticSize) -> None:
    """Rewrite a float32-cache base graph in place. Raises ExportError for a graph it cannot express."""
    model.graph.opset_imports[""] = _OPSET
    for node in list(model.graph):
        if node.op_type in _NORMS:
            _norm(node)
    _flat_logits_last(model)
    for layer, node in enumerate(attention_nodes(model)):
        _attention(model, node, layer=layer, size=size)
    common.RemoveUnusedNodesPass()(model)
    _order_inputs(model)
    _fix_inputs(model, size)
    _fix_values(model, size)


def _norm(node: ir.Node) -> None:
    """Replace a norm, with or without the sum before it, by an Add and an RMSNormalization."""
    new = Rewriter(node)
    value, weight = node.inputs[0], node.inputs[1]
    assert value is not None
    if node.op_type != _NORMS[0]:
        value, weight = new.add("Add", value, weight), node.inputs[2]
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            value = new.add("Add", value, node.inputs[3])
        if len(node.outputs) > _SKIP_SUM:
            new.take_over(node.outputs[_SKIP_SUM], value)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    new.take_over(node.outputs[0], new.add("RMSNormalization", value, weight, axis=-1, epsilon=epsilon))
    new.remove()


def _flat_logits_last(model: ir.Model) -> None:
    """Move the removal of the batch dimension behind the head: QNN's MatMulNBits takes three dimensions only."""
    head = head_of(model)
    squeeze = head.inputs[0].producer() if head.inputs[0] is not None else None
    if squeeze is None or squeeze.op_type != "Squeeze" or head.op_type != "MatMulNBits":
        return
    head.replace_input_with(0, squeeze.inputs[0])
    place, logits = next((index, value) for index, value in enumerate(model.graph.outputs) if value.name == "logits")
    assert logits.shape is not None
    flat_shape = logits.shape
    value: ir.Value | None = logits
    while value is not None:  # scaling and capping between the head and the logits
        assert value.shape is not None
        value.shape = ir.Shape([1, *value.shape])
        node = value.producer()
        value = None if node is None or node is head else node.inputs[0]
    flat = ir.node("Squeeze", [logits, squeeze.inputs[1]], name="/rows/Flat")
    logits.name = "logits/batch"
    flat.outputs[0].name, flat.outputs[0].type = "logits", logits.type
    flat.outputs[0].shape = flat_shape
    model.graph.append(flat)
    model.graph.outputs[place] = flat.outputs[0]


def _attention(model: ir.Model, node: ir.Node, *, layer: int, size: StaticSize) -> None:
    """Replace a GroupQueryAttention by products and a softmax, with the bias as mask.

    The heads that share keys are stacked as rows of one product, so that keys are neither repeated nor broadcast.
    """
    inputs = [*node.inputs, *[None] * (_SINK - len(node.inputs))]
    first, past_key, past_value, bias = inputs[0], inputs[3], inputs[4], inputs[10]
    assert first is not None
    if any(value is not None for value in inputs[_SINK:]) or bias is None or past_key is None or past_value is None:
        raise ExportError(f"layer {layer} has 8-bit keys, sinks or no bias: static graphs are made of the base graph")
    heads, shared = node.attributes.get_int("num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    assert past_key.shape is not None
    head = int(past_key.shape[3])  # type: ignore[arg-type]  # `declared_shapes` has set it
    width, slots = size.width, size.slots
    new = Rewriter(node)
    if inputs[1] is not None:
        parts = [part for part in inputs[:3] if part is not None]
    else:
        parts = new.split(first, [heads * head, shared * head, shared * head])
    rows = []
    for part, count in zip(parts, (heads, shared, shared), strict=True):
        rows.append(new.add("Transpose", new.reshape(part, 1, width, count, head), perm=[0, 2, 1, 3]))
    query, key, value = rows
    if node.attributes.get_int("do_rotary", 0):
        query, key = (_rotated(new, rotating, node=node) for rotating in (query, key))
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(head)
    query = new.reshape(new.scaled(query, scale), 1, shared, heads // shared * width, head)
    keys, values = (new.add("Concat", past, own, axis=2) for past, own in ((past_key, key), (past_value, value)))
    scores = new.add("MatMul", query, new.add("Transpose", keys, perm=[0, 1, 3, 2]))
    cap = node.attributes.get_float("softcap", 0.0)
    if cap:
        scores = new.scaled(new.add("Tanh", new.scaled(scores, 1 / cap)), cap)
    mask = add_input(model, _BIASES[str(bias.name)], ir.DataType.FLOAT, [1, 1, width, slots + width])
    by_head = new.add("Add", new.reshape(scores, shared, heads // shared, width, slots + width), mask)
    weights = new.reshape(new.add("Softmax", by_head, axis=-1), 1, shared, heads // shared * width, slots + width)
    mixed = new.reshape(new.add("MatMul", weights, values), 1, heads, width, head)
    output = new.reshape(new.add("Transpose", mixed, perm=[0, 2, 1, 3]), 1, width, heads * head)
    new.finish(output, key, value)


def _rotated(new: Rewriter, value: ir.Value, *, node: ir.Node) -> ir.Value:
    cosine, sine, positions = node.inputs[7:10]
    assert cosine is not None
    assert cosine.shape is not None
    attributes = {
        "interleaved": node.attributes.get_int("rotary_interleaved", 0),
        "rotary_embedding_dim": 2 * int(cosine.shape[1]),  # type: ignore[arg-type]
    }
    return new.add("RotaryEmbedding", value, cosine, sine, positions, **attributes)


def _order_inputs(model: ir.Model) -> None:
    """Put masks after the positions and remove the inputs that they replace."""
    named = {str(value.name): value for value in model.graph.inputs}
    first = [named.pop(name) for name in _ORDER if name in named]
    model.graph.inputs[:] = [*first, *(value for name, value in named.items() if name not in (*_SCALARS, *_BIASES))]


def _fix_inputs(model: ir.Model, size: StaticSize) -> None:
    """Set the shapes of ids, positions, cache and adapters; a graph without a fixed rank keeps no adapter inputs."""
    for value in model.graph.inputs:
        shape = value.shape
        assert shape is not None
        if str(value.name).startswith("past_key_values"):
            value.shape = ir.Shape([1, shape[1], size.slots, shape[3]])
        elif str(value.name).startswith("lora."):
            if not size.rank:
                raise ExportError("the graph takes adapters: give the static graph their rank")
            stacked = len(STACKS.get(str(value.name).split(".")[2], ("",)))  # each of whose projections has this rank
            value.shape = ir.Shape([part if isinstance(part, int) else stacked * size.rank for part in shape])
            value.const_value = None
            model.graph.initializers.pop(str(value.name), None)  # the default has rank 0, which does not fit
    for value in model.graph.outputs:
        if str(value.name).startswith("present"):
            assert value.shape is not None
            value.shape = ir.Shape([1, value.shape[1], size.width, value.shape[3]])


def _fix_values(model: ir.Model, size: StaticSize) -> None:
    """Fix the dimensions S and R everywhere; the engine infers shapes that still have another dynamic dimension."""
    known: dict[str, int] = {"S": size.width, "R": size.head_rows}
    values = [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]
    for value in values:
        if value.shape is None or value.shape.is_static():
            continue
        fixed = [part if isinstance(part, int) else known.get(str(part.value)) for part in value.shape]
        inside = not (value.is_graph_input() or value.is_graph_output())
        value.shape = None if inside and None in fixed else ir.Shape(fixed)
