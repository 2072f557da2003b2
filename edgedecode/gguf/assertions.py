"""What llama.cpp asserts of a model file when it loads or first runs it, refused here: assertions end the process.

Found by changing every field and tensor of small files (tests/contract/test_llama_refusals.py lists the cases); what
the engine refuses by itself, with a reason, is left to it.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from edgedecode.errors import ManifestError

from .contents import Contents
from .gguf_names import CLASSES

__all__ = ["check_assertions"]

F32 = 0
UNMULTIPLIED = {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
"""Tensor types that no product of the engine takes."""
FLOATS = (".ssm_a", ".ssm_conv1d.", ".shortconv.conv.")
"""Recurrent layers' small arrays, which no product takes."""
MOST_LAYERS, MOST_EXPERTS = 512, 1024
SCALINGS = ("none", "linear", "yarn", "longrope")
ROTATING = frozenset((*CLASSES.values(), "lfm2", "lfm2moe"))
_POSITIVE = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")
"""Numbers that the engine asserts, or computes nonsense with, unless they are finite and above 0."""


def check_assertions(contents: Contents, architecture: str, *, path: Path) -> None:
    """Raise ManifestError for the first number or tensor that would end the process."""
    complaint = (
        _of_numbers(contents, architecture)
        or _of_heads(contents, architecture)
        or _of_experts(contents, architecture)
        or _of_tensors(contents)
    )
    if complaint:
        raise ManifestError(f"{path} is damaged or of an unknown kind ({complaint}): copy, download or export it again")


def _of_numbers(contents: Contents, architecture: str) -> str:
    for name in _POSITIVE:
        value = contents.fields.get(f"{architecture}.{name}", 1.0)
        if not (isinstance(value, (int, float)) and isfinite(value) and value > 0):
            return f"its {name} is {value}"
    layers = contents.integer(f"{architecture}.block_count")
    if not 0 < layers <= MOST_LAYERS:
        return f"it has {layers or 'no'} layers"
    if (ahead := contents.integer(f"{architecture}.nextn_predict_layers")) >= layers:
        return f"{ahead} of its {layers} layers predict further tokens"
    if contents.fields.get(f"{architecture}.attention.causal", 1) != 1:
        return "its attention looks ahead: it is not a decoder"
    every = f"{architecture}.attention.sliding_window_pattern"
    if contents.fields.get(every) == 1 and every not in contents.layers:
        return "no layer has the sliding window that it names"
    scaling = contents.fields.get(f"{architecture}.rope.scaling.type", SCALINGS[0])
    return "" if scaling in SCALINGS else f"its rotary scaling is {scaling!r}"


def _of_heads(contents: Contents, architecture: str) -> str:
    """Say what the attention's kernels cannot do with these heads."""
    key = f"{architecture}.attention.head_count"
    heads, size = contents.integer(key), contents.integer(f"{architecture}.attention.key_length")
    hidden = contents.integer(f"{architecture}.embedding_length")
    rotated = contents.integer(f"{architecture}.rope.dimension_count")
    counts = set(contents.layers.get(f"{key}_kv", (contents.integer(f"{key}_kv"),)))
    if any(count and heads % count for count in counts):
        return f"its {heads} heads do not share {sorted(counts)} KV heads evenly"
    if architecture in CLASSES.values() and len(counts) > 1:
        return f"its layers have different numbers of KV heads, {sorted(counts)}"
    if not contents.fields.get(f"{architecture}.rope.dimension_count", 1) and architecture in ROTATING:
        return "it rotates nothing, over which the engine does not end"
    if rotated % 2 or (heads and rotated > (size or hidden // heads)):
        return f"it rotates {rotated} values of heads of {size or hidden // max(1, heads)}"
    return _of_queries(contents, architecture, heads * (size or hidden // max(1, heads)))


def _of_queries(contents: Contents, architecture: str, width: int) -> str:
    """Say where a product gives no whole queries; architectures with heads of several sizes are left to the engine."""
    fields = (f"{architecture}.attention.key_length_swa", f"{architecture}.attention.head_count")
    if not width or fields[0] in contents.fields or fields[1] in contents.layers:
        return ""
    for name, tensor in contents.tensors.items():
        if name.endswith(".attn_q.weight") and len(tensor.shape) == 2 and tensor.shape[1] % width:
            return f"{name[:40]} gives {tensor.shape[1]} values for queries of {width}"
    return ""


def _of_experts(contents: Contents, architecture: str) -> str:
    count = contents.integer(f"{architecture}.expert_count")
    used = contents.layers.get(f"{architecture}.expert_used_count")
    uses = used or (contents.integer(f"{architecture}.expert_used_count"),)
    if count > MOST_EXPERTS or max(uses) > count or (count and not max(uses)):
        return f"it uses {max(uses)} of {count} experts"
    return ""


def _of_tensors(contents: Contents) -> str:
    for tensor in contents.tensors.values():
        if len(tensor.shape) == 1 and tensor.type != F32:
            return f"{tensor.name[:40]} is a vector, and not of 32-bit floats"
        if tensor.type != F32 and any(part in tensor.name for part in FLOATS):
            return f"{tensor.name[:40]} is not of 32-bit floats"
        if tensor.type in UNMULTIPLIED:
            return f"{tensor.name[:40]} is of type {UNMULTIPLIED[tensor.type]}"
    return ""
