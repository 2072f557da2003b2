"""Sets up a base graph's inputs: lengths, rotary positions and attention biases, and their shapes and order."""

from collections.abc import MutableSequence, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common

from .surgery import add_input, attention_nodes, input_named, set_optional_input

_SEQLENS, _TOTAL = 5, 6
_POSITIONS = 9
_BIAS = 10
_SHAPE = (1, 1, "S", "T")
_WINDOW_ATTRIBUTES = ("local_window_size", "sliding_window_cache")
_RENAMED = {"sequence_length": "S", "S": "S", "R": "R"}
"""Names of the second dimension; others stay dynamic, such as rows times heads before a per-head norm."""
_ORDER = ("input_ids", "position_ids", "seqlens_k", "total_length", "attention_bias", "window_bias", "rows")


def direct_lengths(model: ir.Model) -> None:
    """Add inputs `seqlens_k` and `total_length`, both int32 [1], and remove `attention_mask` with its subgraph."""
    seqlens = add_input(model, "seqlens_k", ir.DataType.INT32, [1])
    total = add_input(model, "total_length", ir.DataType.INT32, [1])
    for node in attention_nodes(model):
        node.replace_input_with(_SEQLENS, seqlens)
        node.replace_input_with(_TOTAL, total)
    common.RemoveUnusedNodesPass()(model)
    mask = input_named(model, "attention_mask")
    if mask is not None and not mask.uses():
        model.graph.inputs.remove(mask)


def explicit_positions(model: ir.Model) -> None:
    """Add input `position_ids`, int64 [1, S], and wire it to every attention node that applies rotary positions."""
    positions = add_input(model, "position_ids", ir.DataType.INT64, [1, "S"])
    for node in attention_nodes(model):
        if node.attributes.get_int("do_rotary", 0):
            set_optional_input(node, _POSITIONS, positions)


def tree_bias(model: ir.Model, *, windowed: Sequence[bool] = ()) -> None:
    """Add input `attention_bias`, float32 [1, 1, S, T], and wire it to every attention node without a window.

    A large negative value masks a slot, which is how a tree is encoded. The engine's window attribute counts slots,
    which is wrong for a tree's branches, so it is removed and the caller applies the window when it fills the bias.

    windowed[i]: layer i has a window and uses input `window_bias`, of the same shape. An input is only added if a layer
    uses it; () means no windows.
    """
    for layer, node in enumerate(attention_nodes(model)):
        name = "window_bias" if windowed and windowed[layer] else "attention_bias"
        set_optional_input(node, _BIAS, add_input(model, name, ir.DataType.FLOAT, _SHAPE))
        for attribute in _WINDOW_ATTRIBUTES:
            node.attributes.pop(attribute, None)


def declared_shapes(model: ir.Model, *, head_size: int) -> None:
    """Set shapes and order of inputs and outputs: named ones first, then key and value of each layer."""
    pairs: list[ir.Value] = []
    results: list[ir.Value] = []
    for node in attention_nodes(model):
        pairs += [value for value in node.inputs[3:5] if value is not None]
        results += node.outputs[1:3]
    for values, length in ((pairs, "P"), (results, "N")):
        for value in values:
            assert value.shape is not None
            value.shape = ir.Shape([1, value.shape[1], length, head_size])
    named = {str(value.name): value for value in model.graph.inputs}
    for name in ("input_ids", "position_ids"):
        if name in named:
            named[name].shape = ir.Shape([1, "S"])
    plain = [named[name] for name in _ORDER if name in named]
    others = [value for value in model.graph.inputs if value not in plain and value not in pairs]
    _reorder(model.graph.inputs, [*plain, *others, *pairs])
    _reorder(model.graph.outputs, [*(value for value in model.graph.outputs if value not in results), *results])
    for node in model.graph:
        for output in node.outputs:
            if output.shape is not None and len(output.shape) == 3 and output not in results:
                output.shape = ir.Shape([1, _RENAMED.get(str(output.shape[1])), output.shape[2]])


def _reorder(values: MutableSequence[ir.Value], wanted: list[ir.Value]) -> None:
    assert len(values) == len(wanted)
    values[:] = wanted
