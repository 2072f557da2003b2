"""onnxruntime-genai as a peer of `bench --against`: plain, with its draft model, and with its n-gram lookup.

A pack's base graph is the model builder's graph with other inputs. A temporary folder gets it in the builder's form:
lengths come from an attention mask, positions and biases are left to the attention operator, and every row is scored.
Weights are linked, or copied where that is not possible. Speculation with a draft model needs both models in one
configuration; plain decoding and lookups run on the target alone.
"""

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from edgedecode.cache import cache_folder
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.export.frameworks import reason_of
from edgedecode.export.graph.passes.surgery import attention_nodes, input_named
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.new_folder import link_or_copy

from .peer import PLAIN_MODE, Answer, PeerOrder

KV_TYPE = "float32"
_ROOM = 17
"""Additional positions for its longest draft."""
_LOOKUPS: dict[str, dict[str, object]] = {
    "lookup 4": {"ngram_size": 3, "max_draft_tokens": 4},
    "lookup 8": {"ngram_size": 3, "max_draft_tokens": 8},
    "lookup 8 adaptive": {"ngram_size": 3, "max_draft_tokens": 8, "min_adaptive_k": 1, "cooldown": True},
    "lookup 8 chained": {"ngram_size": 3, "max_draft_tokens": 8, "ngram_chained_lookup": True},
}
_DRAFTS: dict[str, dict[str, object]] = {
    "draft 2": {"max_draft_tokens": 2},
    "draft 4": {"max_draft_tokens": 4},
    "draft 8": {"max_draft_tokens": 8},
    "draft 8 adaptive": {"max_draft_tokens": 8, "min_adaptive_k": 1, "cooldown": True},
}
"""Speculative options by mode. 4 is genai's default length; adaptive modes shorten drafts to 1 token and pause after
rejections."""
_OWN_INPUTS = ("seqlens_k", "total_length", "attention_bias", "rows")
_POSITIONS = 9
_INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
_OUTPUTS = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}


class GenaiPeer:
    """Answers with a `Generator`, arg-max, over the pack's own graphs and weights."""

    def __init__(self, order: PeerOrder) -> None:
        # float16 is accepted: it is the default of our llama.cpp runtime, not a choice of the user.
        if order.kv_type not in (KV_TYPE, "float16"):
            raise CapabilityError(f"its KV cache is {KV_TYPE}, that of this run is {order.kv_type}")
        import onnxruntime_genai

        self._genai: Any = onnxruntime_genai  # its bindings are untyped
        self._capacity, root = order.capacity, Path(order.root)
        manifest = Manifest.load(root)
        threads = {"target": order.threads, "draft": order.draft_threads}
        with tempfile.TemporaryDirectory(dir=cache_folder("peers"), ignore_cleanup_errors=True) as name:
            decoders = {
                role: write_model(Path(name, role), manifest.located(role), root, threads=threads[role])
                for role in threads
                if role in manifest.models
            }
            rows = manifest.models["target"].rows
            config = _config(decoders["target"], rows=rows, context=order.capacity, ends=order.ends)
            Path(name, "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
            self._target, self._pair = self._opened(name, {}), None
            if "draft" in decoders:
                self._pair = self._opened(name, {"model": {"type": "speculative", "draft": decoders["draft"]}})
        drafts = {} if self._pair is None else _DRAFTS
        plain: dict[str, dict[str, object]] = {PLAIN_MODE: {}}
        self._options = plain | drafts | _LOOKUPS
        self.modes = tuple(self._options)
        self.setting = (
            f"onnxruntime-genai {version('onnxruntime-genai')}, Generator over the graphs and weights of the pack, "
            f"threads: target {order.threads}, draft {order.draft_threads if drafts else 'none'}, "
            f"{KV_TYPE} KV cache"
        )

    def _opened(self, folder: str, overlay: dict[str, object]) -> Any:  # noqa: ANN401  (its bindings are untyped)
        """Open a folder's models, `overlay` over its configuration. Raises RuntimeUnavailable with the reason."""
        try:
            config = self._genai.Config(folder)
            if overlay:
                config.overlay(json.dumps(overlay))
            return self._genai.Model(config)
        except Exception as error:  # the bindings raise RuntimeError and their own exception types
            raise RuntimeUnavailable(f"onnxruntime-genai does not open the models: {reason_of(error)}") from None

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        """Answer in a new Generator, as genai does for each conversation."""
        started = perf_counter()
        model = self._pair if mode in _DRAFTS else self._target
        parameters = self._genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=min(self._capacity, len(prompt) + count + _ROOM))
        if options := self._options[mode]:
            parameters.set_speculative_options(**options)
        generator = self._genai.Generator(model, parameters)
        generator.append_tokens(list(prompt))
        first = perf_counter() - started
        tokens: list[int] = []
        while len(tokens) < count and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return Answer(tuple(tokens), perf_counter() - started, first, 0)


def _config(decoder: dict[str, object], *, rows: int, context: int, ends: Sequence[int]) -> dict[str, object]:
    model = {
        "type": "llama",  # genai's decoder types differ only in names and inputs, which are given here
        "vocab_size": rows,
        "context_length": context,
        "bos_token_id": ends[0] if ends else 0,
        "eos_token_id": list(ends),
        "pad_token_id": ends[0] if ends else 0,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": context, "num_beams": 1, "past_present_share_buffer": True}
    return {"model": model, "search": search}


def write_model(folder: Path, entry: ModelEntry, root: Path, *, threads: int) -> dict[str, object]:
    """Write a model of the pack at `root` into a new folder; return its part of genai's configuration.

    Raises CapabilityError for a graph without an equivalent in the builder's form.
    """
    graph = entry.graphs.get("base")
    if graph is None or entry.window or not {"rows", "input_ids", "seqlens_k"} <= {*graph.inputs}:
        raise CapabilityError(
            f"the {folder.name} has no graph that onnxruntime-genai can run, one without an attention window that "
            f"updates its KV cache in place"
        )
    model = ir.load(root / graph.file)
    heads = _builder_graph(model, rows=entry.rows)
    folder.mkdir()
    ir.save(model, folder / "model.onnx")
    weights = root / entry.weights
    link_or_copy(weights.resolve(), folder / weights.name)
    positions = {} if input_named(model, "position_ids") is None else {"position_ids": "position_ids"}
    return {
        "filename": f"{folder.name}/model.onnx",
        "head_size": entry.head_size,
        "hidden_size": entry.hidden_size,
        "num_attention_heads": heads,
        "num_hidden_layers": entry.layers,
        "num_key_value_heads": entry.kv_heads,
        "inputs": _INPUTS | positions,
        "outputs": _OUTPUTS,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": [], "intra_op_num_threads": threads},
    }


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


def _score_every_row(model: ir.Model, *, rows: int) -> None:
    """Bypass the nodes that select and flatten the scored rows."""
    picked = input_named(model, "rows")
    for node in [node for node in model.graph if picked in node.inputs or node.name == "/rows/Squeeze"]:
        before = node.inputs[0]
        assert before is not None
        ir.convenience.replace_all_uses_with(node.outputs[0], before)
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    logits.shape = ir.Shape([1, "S", rows])


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
        if (value := input_named(model, name)) is not None:
            ir.convenience.replace_all_uses_with(value, node.outputs[0])
