"""Rewrites graphs of onnxruntime-genai's model builder as base graphs of a pack; keeps their weights."""

import onnx_ir as ir

from edgedecode.errors import ExportError

from ..graph.passes.graph_inputs import declared_shapes, direct_lengths, explicit_positions, tree_bias
from ..graph.passes.picked_rows import picked_rows
from ..graph.passes.stored_weights import viewed_tables
from ..graph.passes.surgery import attention_nodes
from .onnx_source import OnnxSource

_ATTENTION = "GroupQueryAttention"
_INPUTS = {"input_ids", "position_ids", "seqlens_k", "total_length", "attention_bias", "rows"}
_OTHER_ATTENTION = ("MultiHeadAttention", "SparseAttention", "PagedAttention", "LinearAttention", "EPContext")
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_COSINES = 7


def check_operators(source: OnnxSource) -> None:
    """Raise ExportError for graphs without the builder's attention, such as those that concatenate their caches."""
    odd = [node for node in source.model.graph if node.op_type in _OTHER_ATTENTION or node.domain not in _DOMAINS]
    if odd:
        found = f"uses {odd[0].domain}.{odd[0].op_type}" if odd[0].domain else f"uses {odd[0].op_type}"
    elif all(node.op_type != _ATTENTION for node in source.model.graph):
        found = f"has no {_ATTENTION}, which updates its cache in place"
    else:
        return
    raise ExportError(
        f"{source.graph} {found}: give the base model's folder to `edgedecode export`, a GGUF file to `import`, or "
        f"build the graph with {_ATTENTION} for the CPU (in onnxruntime-genai's builder: -e cpu)"
    )


def context_limit(source: OnnxSource) -> tuple[int, tuple[str, ...]]:
    """Return the context within which results are correct, and a note if a sliding window limits it.

    It is that of the rotary tables, and the window, which the engine counts in slots of its cache: in a tree, slots are
    not positions.
    """
    nodes = attention_nodes(source.model)
    tables = [node.inputs[_COSINES] for node in nodes if len(node.inputs) > _COSINES]
    sizes = [table.shape[0] for table in tables if table is not None and table.shape is not None]
    context = min([source.config.context_length, *(size for size in sizes if isinstance(size, int))])
    windows = [node.attributes.get_int("local_window_size", -1) for node in nodes]
    window = min((each for each in windows if each > 0), default=source.config.window)
    if not 0 < window < context:
        return context, ()
    return window, (f"context limited to {window} of {context} tokens: the model's sliding window",)


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


def check_builder_graph(source: OnnxSource) -> None:
    """Raise ExportError for graphs of another type or an unexpected structure."""
    layers, nodes = source.config.decoder.num_hidden_layers, len(attention_nodes(source.model))
    if layers != nodes:
        raise ExportError(f"{source.graph} has {nodes} {_ATTENTION} nodes for {layers} layers: unsupported")
    for value in (*source.model.graph.inputs, *source.model.graph.outputs):
        cached = str(value.name).startswith(("past_key_values.", "present."))
        if (cached or value.name == "logits") and value.dtype != ir.DataType.FLOAT:
            raise ExportError(
                f"{source.graph} has {value.name} in {str(value.dtype).lower()}: it was built for another provider; "
                f"build it for the CPU (-e cpu), which computes in float"
            )
    logits = next(value for value in source.model.graph.outputs if value.name == "logits")
    if logits.shape is not None and logits.shape[1] == 1:
        raise ExportError(f"{source.graph} returns only the last row's logits: build it without prune_lm_head")
    quantized = ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger")
    if found := next((node.op_type for node in source.model.graph if node.op_type in quantized), None):
        raise ExportError(f"{source.graph} stores weights for {found}, not MatMulNBits: build it without use_qdq")
