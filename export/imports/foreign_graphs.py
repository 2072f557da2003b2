"""Rewrites graphs of onnxruntime-genai's model builder and of optimum as base graphs of a pack; keeps their weights."""

from __future__ import annotations

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.graph_inputs import declared_shapes, direct_lengths, explicit_positions, tree_bias
from ..graph.passes.picked_rows import picked_head_rows, picked_rows
from ..graph.passes.stored_weights import viewed_tables
from ..graph.passes.surgery import attention_nodes
from .graph_sizes import GraphSizes, read_sizes
from .onnx_source import OnnxSource

_ATTENTION = "GroupQueryAttention"
_INPUTS = {"input_ids", "position_ids", "seqlens_k", "total_length", "attention_bias", "rows"}
_OTHER_ATTENTION = ("MultiHeadAttention", "SparseAttention", "PagedAttention", "LinearAttention", "EPContext")
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_COSINES = 7
_NEEDED, _OPTIONAL = ("input_ids", "attention_mask"), ("position_ids",)
_SHARED_SCALE = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
"""Operators that quantize all rows of a pass with one scale: each row then depends on the other rows of its batch."""


def has_builder_attention(source: OnnxSource) -> bool:
    """Return whether the graph uses the builder's attention operator. Raises ExportError for unsupported operators."""
    for node in source.model.graph:
        if node.op_type in _OTHER_ATTENTION or node.domain not in _DOMAINS:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise ExportError(
                f"{source.graph} uses {name}, which is not supported: build it with {_ATTENTION} for the CPU "
                f"(in the builder: -e cpu), or export it with optimum"
            )
    return any(node.op_type == _ATTENTION for node in source.model.graph)


def read_builder_sizes(source: OnnxSource) -> GraphSizes:
    """Read the sizes of a builder graph. Raises ExportError for unsupported types or an unexpected structure."""
    model = source.model
    _check_builder_graph(source)
    sizes = read_sizes(model, name=source.name, head_size=_head_size(model, source.name))
    nodes = len(attention_nodes(model))
    if sizes.layers != nodes:
        raise ExportError(f"{source.graph} has {sizes.layers} caches for {nodes} {_ATTENTION} nodes: unsupported")
    return sizes


def window_of(source: OnnxSource) -> int:
    """Return the smallest sliding window of the attention nodes, in cache slots; 0 if none has one."""
    found = (node.attributes.get_int("local_window_size", -1) for node in attention_nodes(source.model))
    return min((window for window in found if window > 0), default=0)


def cached_positions(source: OnnxSource) -> int:
    """Return the number of positions in the rotary tables, or the configured context if the tables are not constant."""
    tables = [node.inputs[_COSINES] for node in attention_nodes(source.model) if len(node.inputs) > _COSINES]
    sizes = [table.shape[0] for table in tables if table is not None and table.shape is not None]
    return min((size for size in sizes if isinstance(size, int)), default=source.context)


def rewrite_builder_graph(model: ir.Model, *, head_size: int, early_rows: bool, name: str) -> None:
    """Give the graph the inputs and outputs of a base graph; `early_rows` as in `picked_rows`.

    Removes sliding windows: the caller limits the context to them. Raises ExportError if the graph cannot be rewritten.
    """
    for node in attention_nodes(model):
        node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", -1)
        node.attributes.pop("sliding_window_cache", None)  # a ring buffer of the window's size
    _drop_other_outputs(model)
    viewed_tables(model)
    direct_lengths(model)
    explicit_positions(model)
    tree_bias(model)
    picked_rows(model, early=early_rows)
    declared_shapes(model, head_size=head_size)
    found = {str(value.name) for value in model.graph.inputs if not str(value.name).startswith("past_key_values.")}
    if unknown := sorted(found - _INPUTS):
        raise ExportError(f"{name}: its graph has the unknown input {unknown[0]}: unsupported")


def _drop_other_outputs(model: ir.Model) -> None:
    """Remove every output except logits and KV cache, such as hidden states."""
    for value in list(model.graph.outputs):
        if value.name != "logits" and not str(value.name).startswith("present."):
            model.graph.outputs.remove(value)


def _check_float(source: OnnxSource, remedy: str) -> None:
    """Raise ExportError unless logits and KV cache are float32."""
    for value in (*source.model.graph.inputs, *source.model.graph.outputs):
        cached = str(value.name).startswith(("past_key_values.", "present."))
        if (cached or value.name == "logits") and value.dtype != ir.DataType.FLOAT:
            raise ExportError(f"{source.graph} has {value.name} in {str(value.dtype).lower()}: {remedy}")


def _check_builder_graph(source: OnnxSource) -> None:
    _check_float(source, "it was built for another provider; build it for the CPU (-e cpu), which computes in float")
    logits = next(value for value in source.model.graph.outputs if value.name == "logits")
    if logits.shape is not None and logits.shape[1] == 1:
        raise ExportError(f"{source.graph} returns only the last row's logits: build it without prune_lm_head")
    quantized = ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger")
    if found := next((node.op_type for node in source.model.graph if node.op_type in quantized), None):
        raise ExportError(f"{source.graph} stores weights for {found}, not MatMulNBits: build it without use_qdq")


def _head_size(model: ir.Model, name: str) -> int:
    """Return the size of an attention head: the attention's width divided by its heads."""
    node = attention_nodes(model)[0]
    shape, heads = node.outputs[0].shape, node.attributes.get_int("num_heads", 0)
    if shape is None or not isinstance(shape[-1], int) or not heads:
        raise ExportError(f"{name}: its graph does not define the size of its attention heads: unsupported")
    return shape[-1] // heads


def read_optimum_sizes(source: OnnxSource) -> GraphSizes:
    """Read the sizes of an optimum graph. Raises ExportError for unsupported inputs, types or operators."""
    model = source.model
    names = {str(value.name) for value in model.graph.inputs}
    plain = {name for name in names if not name.startswith("past_key_values.")}
    if missing := [name for name in _NEEDED if name not in names]:
        raise ExportError(f"{source.graph} has no input {missing[0]}: export it with --task text-generation-with-past")
    if plain == names:
        raise ExportError(f"{source.graph} has no past_key_values: export it with --task text-generation-with-past")
    if unknown := sorted(plain - {*_NEEDED, *_OPTIONAL}):
        raise ExportError(f"{source.graph} has the unknown input {unknown[0]}: unsupported")
    if found := next((node.op_type for node in model.graph if node.op_type in _SHARED_SCALE), None):
        raise ExportError(f"{source.graph} uses {found}, which rounds the rows of a pass together: export it in float")
    _check_float(source, "export it with --dtype fp32")
    sizes = read_sizes(model, name=source.name, head_size=0)
    if sizes.head_size < 1:
        raise ExportError(f"{source.graph} does not define the size of its attention heads: unsupported")
    return sizes


def rewrite_optimum_graph(model: ir.Model) -> tuple[str, ...]:
    """Drop unused outputs and select rows before the head; return the graph's capabilities."""
    _drop_other_outputs(model)
    return ("concat", "rows") if picked_head_rows(model) else ("concat",)
