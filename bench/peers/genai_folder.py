"""Builds a folder that onnxruntime-genai can open, from a pack's graphs and weights.

A pack's base graph is the model builder's graph with other inputs. Here the builder's form is restored: lengths come
from an attention mask, positions and biases are left to the attention operator, and every row is scored. Weights are
linked, or copied where that is not possible.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.export.frameworks import reason_of
from edgedecode.export.graph.passes.surgery import attention_nodes, input_named
from edgedecode.pack.manifest import Graph, ModelEntry

CONFIG = "genai_config.json"
BASE = "base"
_OWN_INPUTS = ("seqlens_k", "total_length", "attention_bias", "rows")
_POSITIONS, _BIAS = 9, 10
_NAMES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


class GenaiFolder:
    """A folder with a target and optionally a draft. `path` opens as the target alone, and with the overlay
    `speculative` as the pair."""

    def __init__(self, path: Path, *, context: int, ends: Sequence[int]) -> None:
        self.path = path
        self._context, self._ends = context, list(ends)
        self._draft: Mapping[str, object] = {}

    @property
    def has_draft(self) -> bool:
        return bool(self._draft)

    @property
    def speculative(self) -> dict[str, object]:
        """The overlay that turns the target's configuration into the pair's."""
        return {"model": {"type": "speculative", "draft": self._draft}}

    def add_model(self, role: str, entry: ModelEntry, root: Path, *, threads: int) -> None:
        """Add a role of a pack. Raises CapabilityError for a graph without an equivalent in the builder's form."""
        graph = _base_graph(entry, role)
        model = ir.load(root / graph.file)
        heads = _builder_graph(model, rows=entry.rows)
        folder = self.path / role
        folder.mkdir(exist_ok=True)
        ir.save(model, folder / "model.onnx")
        weights = root / entry.weights
        if not (folder / weights.name).exists():
            _link(weights, folder / weights.name)
        names = dict(_NAMES["inputs"])
        if input_named(model, "position_ids") is not None:
            names["position_ids"] = "position_ids"
        decoder = {
            "filename": f"{role}/model.onnx",
            "head_size": entry.head_size,
            "hidden_size": entry.hidden_size,
            "num_attention_heads": heads,
            "num_hidden_layers": entry.layers,
            "num_key_value_heads": entry.kv_heads,
            "inputs": names,
            "outputs": _NAMES["outputs"],
        }
        self._add(role, decoder, rows=entry.rows, threads=threads)

    def _add(self, role: str, decoder: dict[str, object], *, rows: int, threads: int) -> None:
        options = {"log_id": "onnxruntime-genai", "provider_options": [], "intra_op_num_threads": threads}
        decoder["session_options"] = options
        if role != "target":
            self._draft = decoder
            return
        model = {
            "type": "llama",  # genai's decoder types differ only in names and inputs, which are given here
            "vocab_size": rows,
            "context_length": self._context,
            "bos_token_id": self._ends[0] if self._ends else 0,
            "eos_token_id": self._ends,
            "pad_token_id": self._ends[0] if self._ends else 0,
            "decoder": decoder,
        }
        search = {"do_sample": False, "max_length": self._context, "num_beams": 1, "past_present_share_buffer": True}
        text = json.dumps({"model": model, "search": search})
        (self.path / CONFIG).write_text(text, encoding="utf-8")


def _builder_graph(model: ir.Model, *, rows: int) -> int:
    """Turn a pack's base graph back into the builder's form; return its number of attention heads.

    Raises CapabilityError for a graph with additional inputs.
    """
    nodes = attention_nodes(model)
    _score_every_row(model, rows=rows)
    _lengths_from_mask(model)
    for node in nodes:
        node.resize_inputs(_POSITIONS)
    common.RemoveUnusedNodesPass()(model)
    for name in (*_OWN_INPUTS, "position_ids"):
        value = input_named(model, name)
        if value is not None and not value.uses():
            model.graph.inputs.remove(value)
    if left := [value.name for value in model.graph.inputs if value.name in _OWN_INPUTS]:
        raise CapabilityError(f"its graph uses {', '.join(left)} in a way onnxruntime-genai cannot serve")
    return nodes[0].attributes["num_heads"].as_int()


def _base_graph(entry: ModelEntry, role: str) -> Graph:
    graph = entry.graphs.get(BASE)
    if graph is None or entry.window or not {"rows", "input_ids", "seqlens_k"} <= {*graph.inputs}:
        raise CapabilityError(
            f"the {role} has no graph that onnxruntime-genai can run, one without an attention window that updates its "
            f"KV cache in place"
        )
    return graph


def _score_every_row(model: ir.Model, *, rows: int) -> None:
    """Bypass the nodes that select and flatten the scored rows."""
    picked = input_named(model, "rows")
    for node in [node for node in model.graph if picked in node.inputs]:
        _bypass(node)
    for node in [node for node in model.graph if node.name == "/rows/Squeeze"]:
        _bypass(node)
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    logits.shape = ir.Shape([1, "S", rows])


def _bypass(node: ir.Node) -> None:
    before = node.inputs[0]
    assert before is not None
    ir.convenience.replace_all_uses_with(node.outputs[0], before)


def _lengths_from_mask(model: ir.Model) -> None:
    """Compute both lengths from the attention mask, int64 [1, total], as the builder's graphs do."""
    mask = ir.Value(name="attention_mask", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1, "total"]))
    model.graph.inputs.insert(1, mask)
    one = ir.Value(name="mask/one", const_value=ir.tensor(np.array([1], np.int64), name="mask/one"))
    model.graph.register_initializer(one)
    total = ir.node("ReduceSum", [mask, one], {"keepdims": 0}, name="mask/sum")
    last = ir.node("Sub", [total.outputs[0], one], name="mask/last")
    width = ir.node("Shape", [mask], {"start": 1, "end": 2}, name="mask/width")
    int32 = ir.DataType.INT32.value
    lengths = {
        "seqlens_k": ir.node("Cast", [last.outputs[0]], {"to": int32}, name="mask/seqlens_k"),
        "total_length": ir.node("Cast", [width.outputs[0]], {"to": int32}, name="mask/total_length"),
    }
    added = [total, last, width, *lengths.values()]
    for node in added:
        node.outputs[0].name = f"{node.name}/output"
    model.graph.insert_before(model.graph[0], added)
    for name, node in lengths.items():
        value = input_named(model, name)
        if value is None:
            raise CapabilityError(f"its graph has no input {name}")
        ir.convenience.replace_all_uses_with(value, node.outputs[0])


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it to another file system."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def import_genai() -> Any:  # noqa: ANN401  (its bindings are untyped)
    """Import onnxruntime-genai. Raises RuntimeUnavailable with the line that installs it."""
    try:
        return import_module("onnxruntime_genai")
    except ImportError:
        raise RuntimeUnavailable("onnxruntime-genai is missing: pip install 'edgedecode[export]'") from None


def open_genai(genai: Any, folder: Path, overlay: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401
    """Open a folder's models, `overlay` over its configuration. Raises RuntimeUnavailable with the reason."""
    try:
        config = genai.Config(str(folder))
        if overlay:
            config.overlay(json.dumps(overlay))
        return genai.Model(config)
    except Exception as error:  # the bindings raise RuntimeError and their own exception types
        raise RuntimeUnavailable(f"onnxruntime-genai does not open the models: {reason_of(error)}") from None
