"""Finds the layer that predicts further tokens (MTP) in a checkpoint or a model's GGUF file, as a head's tensors.

Facts: vLLM (qwen3_5_mtp.py, mimo_mtp.py, glm4_moe_mtp.py), llama.cpp (src/models/qwen35.cpp), Ollama's converter
(convert_qwen3next.go).
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.gguf.header import EMBEDDING, OUTPUT

from .head import INPUT_NORM, LAYER, TOKEN_NORM, HeadTensor, put

_FC, _NORM = "fc.weight", "output_norm.weight"
_QWEN = {"pre_fc_norm_embedding": TOKEN_NORM, "pre_fc_norm_hidden": INPUT_NORM, "norm": _NORM, "fc": _FC}
_DEEPSEEK = {"enorm": TOKEN_NORM, "hnorm": INPUT_NORM, "shared_head.norm": _NORM, "eh_proj": _FC}
_MIMO = {"token_layernorm": TOKEN_NORM, "hidden_layernorm": INPUT_NORM, "final_layernorm": _NORM, "input_proj": _FC}
_GGUF = {f"nextn.{name.replace('.', '_')}": place for name, place in _DEEPSEEK.items()}
_SHARED = {
    f"{part}{name}": place
    for part in ("", "nextn.")
    for name, place in (("embed_tokens", EMBEDDING), ("shared_head.head", OUTPUT), ("shared_head_head", OUTPUT))
}
_PLACES = {**_QWEN, **_DEEPSEEK, **_MIMO, **_GGUF, **_SHARED}
"""Modules of Qwen3.5; of GLM-4.5 and DeepSeek; of MiMo; of GGUF files; and copies of the target's → a head's."""
_BLOCK = {**LAYER, "post_attention_norm": "ffn_norm"}
_OWN = re.compile(r"(?:model\.)?mtp(?:\.layers\.|_layers\.|\.)(?:(\d+)\.)?(.+)")
_NUMBERED = re.compile(r"(?:model\.(?:language_model\.)?layers|blk)\.(\d+)\.(.+)")
_HIDDEN_FIRST = "input_proj.weight"
_OTHERS = {
    "Qwen3.8's MTP (mtp.fc_embedding)": re.compile(r"fc_embedding|fc_hidden|hyper_connection"),
    "an MTP layer with a mixture of experts": re.compile(r"experts|_exps|ffn_gate_inp|mlp\.gate\."),
    "an MTP layer with multi-head latent attention": re.compile(r"kv_a_proj|q_a_proj|attn_kv_a|attn_q_a"),
}


def has_mtp(names: Collection[str], layers: int) -> bool:
    """Return whether a checkpoint has MTP tensors, given its model's number of layers."""
    signs = ("nextn.", "eh_proj")
    return any(_OWN.match(name) or any(each in name for each in signs) for name in names if _inside(name, layers))


def placed_mtp(tensors: Mapping[str, HeadTensor], layers: int, *, source: Path) -> dict[str, HeadTensor]:
    """Return the layer's tensors under a head's names. Raises ExportError for other kinds, by name.

    layers: the model's own. Qwen's checkpoints, and under their names files of older versions of Ollama, store norms
    minus one. A matrix of logits in the layer is a copy of the target's, and is left out.
    """
    found = {name: inner for name in tensors if (inner := _inside(name, layers)) and "inv_freq" not in name}
    for kind, pattern in _OTHERS.items():
        if other := next((name for name in found if pattern.search(name)), None):
            raise ExportError(f"{source} holds {kind}, {other[:60]}: only one dense layer with attention is supported")
    if (count := max(layer for layer, _ in found.values()) + 1) > 1:
        raise ExportError(f"{source} holds {count} MTP layers: one is supported")
    placed: dict[str, HeadTensor] = {}
    for name, (_, part) in found.items():
        tensor, place = tensors[name], _place(part)
        if len(tensor.shape) == 1 and place.endswith("norm.weight") and name.startswith("mtp."):
            tensor = _changed(tensor, lambda values: values + np.float32(1))
        if part == _HIDDEN_FIRST:
            tensor = _changed(tensor, lambda values: np.roll(values, values.shape[1] // 2, axis=1))
        if place != OUTPUT:
            put(placed, place, tensor, source=source)
    needed = (_FC, TOKEN_NORM, INPUT_NORM, _NORM, "blk.0.attn_q.weight", "blk.0.attn_output.weight")
    if missing := [place for place in needed if place not in placed]:
        names = ", ".join(sorted(name for name, place in _PLACES.items() if place == missing[0])) or missing[0]
        raise ExportError(f"{source}: its MTP layer lacks {missing[0]} ({names}): download it again")
    return placed


def is_gated(layer: Mapping[str, HeadTensor]) -> bool:
    """Return whether the matrix of queries returns gates, too."""
    return layer["blk.0.attn_q.weight"].shape[0] == 2 * layer["blk.0.attn_output.weight"].shape[1]


def _inside(name: str, layers: int) -> tuple[int, str] | None:
    """Return which MTP layer a tensor belongs to, and its name there; None: it is the model's own."""
    if found := _OWN.fullmatch(name):
        return int(found[1] or 0), found[2]
    found = _NUMBERED.fullmatch(name)
    return (int(found[1]) - layers, found[2]) if found and int(found[1]) >= layers else None


def _place(inner: str) -> str:
    module, _, kind = inner.rpartition(".")
    return _PLACES.get(module) or f"blk.0.{_BLOCK.get(module, module)}.{kind}"


def _changed(tensor: HeadTensor, change: Callable[[FloatArray], FloatArray]) -> HeadTensor:
    return HeadTensor(tensor.shape, lambda: change(np.asarray(tensor.read(), np.float32)))
