"""Reads heads in the layouts that publishers use: flat, speculators, NeMo and ModelOpt, and GGUF files.

Facts: SafeAILab's EAGLE (cnets.py), SGLang's SpecForge (llama3_eagle.py), vLLM's speculators (models/eagle3), llama.cpp
(src/models/eagle3.cpp). torch is needed for `.bin` files alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgedecode.adapters.safetensors_file import SafetensorsFile
from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import HEAD_TAPS

from ..base_model import read_json, read_license
from ..frameworks import reason_of, refused
from ..graph.checkpoint import weight_files
from .gguf_head import read_gguf_head
from .head import FACTORS, Head, HeadShape, HeadTensor, checked_head

_PLACES = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
    **{f"fc_norm.{index}": f"fc_norm.{index}" for index in range(HEAD_TAPS)},
}
_BLOCK = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{each}_norm": f"attn_{each}_norm" for each in "qk"},
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in ("gate", "up", "down")},
}
_IGNORED = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq|(model\.)?(d2t|t2d)")
_LAYER = re.compile(r"midlayer\.|layers\.0\.")
_ROTATED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")
_BIN = "pytorch_model.bin"
_TYPES = ("default", "llama3", "linear")


def read_head(source: Path) -> Head:
    """Read a head from a folder of Hugging Face's form, or from a GGUF file. Raises ExportError in one line."""
    if source.is_file() and source.suffix == ".gguf":
        return read_gguf_head(source)
    if not source.is_dir():
        raise ExportError(f"{source} is no folder and no GGUF file: give one that holds a drafting head")
    config = read_json(source / "config.json")
    if not isinstance(config, dict):
        raise ExportError(f"{source} has no config.json: give the folder of a drafting head")
    tensors = _tensors(source)
    _check_kind(config, tensors, source=source)
    shape = _shape(config, tensors, source=source)
    return checked_head(shape, dict(_placed(shape, config, tensors)), _ids(tensors, shape))


def _tensors(folder: Path) -> dict[str, HeadTensor]:
    if (folder / _BIN).is_file() and not any(folder.glob("*.safetensors")):
        return _unpickled(folder / _BIN)
    found: dict[str, HeadTensor] = {}
    with refused():
        for path in weight_files(folder):
            file = SafetensorsFile.open(path)
            found |= {name: HeadTensor(file.shape(name), partial(file.array, name)) for name in file.tensors}
    return found


def _unpickled(path: Path) -> dict[str, HeadTensor]:
    """Read a pickle that may hold tensors only."""
    try:
        import torch
    except ImportError:
        raise ExportError(f"{path.name} is read with torch, not installed: pip install 'edgedecode[export]'") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: HeadTensor(tuple(value.shape), partial(_floats, value)) for name, value in state.items()}
    except Exception as error:  # torch's errors share no base class
        raise ExportError(
            f"{path} is damaged, or holds more than tensors ({reason_of(error)}): a file of safetensors is needed"
        ) from None


def _floats(value: Any) -> FloatArray:  # noqa: ANN401  (torch's tensor)
    return np.ascontiguousarray(value.float().numpy(), np.float32)


def _check_kind(config: Mapping[str, Any], tensors: Mapping[str, HeadTensor], *, source: Path) -> None:
    """Raise ExportError for heads of another kind, by name."""
    kind = str(config.get("speculators_model_type") or " ".join(map(str, config.get("architectures") or ())))
    fc, names = tensors.get("fc.weight") or tensors.get("model.fc.weight"), " ".join(tensors)
    wide = config.get("hidden_size") or 0
    read = config.get("target_hidden_size") or wide
    others = {
        "a DSpark": "dspark" in kind.lower() or "markov" in names,
        "a DFlash": "dflash" in kind.lower() or "dflash_config" in config,
        "an MTP": kind == "mtp" or any(part in names for part in ("mtp.", "eh_proj", "nextn")),
        "a Medusa": "medusa" in names.lower(),
        "an EAGLE-1 or EAGLE-2": kind == "eagle" or (fc is not None and fc.shape[-1:] == (2 * wide,) != (3 * read,)),
    }
    for name, found in others.items():
        if found:
            raise ExportError(f"{source} holds {name} head: only heads of EAGLE-3's form are supported")
    flat = (name.removeprefix("model.") for name in tensors)
    layers = {name for name in flat if re.match(r"midlayer\.|layers\.\d+\.", name)}
    if fc is None or not layers:
        raise ExportError(f"{source} holds no drafting head of EAGLE-3's form: it has no fc, or no layer")
    if more := [name for name in layers if not _LAYER.match(name)]:
        raise ExportError(f"{source} has more than one layer ({sorted(more)[0]}): heads have one")


def _placed(
    shape: HeadShape, config: Mapping[str, Any], tensors: Mapping[str, HeadTensor]
) -> Iterator[tuple[str, HeadTensor]]:
    """Yield the tensors under their new names; query and key rows in the order of llama.cpp's rotation."""
    for name, tensor in tensors.items():
        if _IGNORED.fullmatch(name):
            continue
        module, _, kind = name.removeprefix("model.").rpartition(".")
        inside = _LAYER.match(module)
        inner = module[inside.end() :] if inside else ""
        place = f"blk.0.{_BLOCK.get(inner, inner)}" if inner else _PLACES.get(module, module)
        if inner and _BLOCK.get(inner) in _ROTATED:
            tensor = HeadTensor(tensor.shape, partial(_paired, tensor, shape.head_size))
        yield f"{place}.{kind}", tensor
    if (scaling := _scaling(_layer_config(config))).get("rope_type") == "llama3":
        yield FACTORS, HeadTensor.of(_divisors(scaling, base=shape.base, size=shape.head_size))


def _paired(tensor: HeadTensor, size: int) -> FloatArray:
    """Return rows whose heads have their two halves as pairs, which llama.cpp rotates."""
    values = tensor.read()
    rest = values.shape[1:]
    halves = values.reshape(-1, 2, size // 2, *rest)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape), np.float32)


def _shape(config: Mapping[str, Any], tensors: Mapping[str, HeadTensor], *, source: Path) -> HeadShape:
    layer = _layer_config(config)
    hidden, heads = _size(layer, "hidden_size"), _size(layer, "num_attention_heads")
    if layer.get("hidden_act", "silu") != "silu":
        raise ExportError(f"the head's activation is {layer['hidden_act']!r}: silu is supported")
    if (layers := layer.get("num_hidden_layers", 1)) != 1:
        raise ExportError(f"config.json says {layers} layers: heads have one")
    scaling = _scaling(layer)
    if (kind := scaling["rope_type"]) not in _TYPES:
        raise ExportError(f"the head's RoPE scaling is {kind!r}: {', '.join(_TYPES)} are supported")
    lm_head = tensors.get("lm_head.weight")
    vocabulary = _size(layer, "vocab_size")
    rows = lm_head.shape[0] if lm_head is not None else 0
    if (stated := config.get("draft_vocab_size")) not in (None, rows):
        raise ExportError(f"config.json says draft_vocab_size {stated}, lm_head has {rows} rows: one is wrong")
    for flag, name in (("norm_before_fc", "input_norm"), ("fc_norm", "fc_norm.0")):
        if config.get(flag) and not any(f"{name}.weight" == each.removeprefix("model.") for each in tensors):
            raise ExportError(f"config.json says {flag}, and the head lacks {name}.weight: download it again")
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return HeadShape(
        hidden=hidden,
        target_hidden=config.get("target_hidden_size") or hidden,
        rows=rows,
        heads=heads,
        kv_heads=layer.get("num_key_value_heads") or heads,
        head_size=layer.get("head_dim") or hidden // heads,
        mlp=_size(layer, "intermediate_size"),
        epsilon=float(layer.get("rms_norm_eps", 1e-6)),
        base=float(scaling.get("rope_theta") or layer.get("rope_theta") or 10000.0),
        context=layer.get("max_position_embeddings") or 2048,
        vocabulary=vocabulary,
        stretch=float(scaling.get("factor", 1.0)) if kind == "linear" else 1.0,
        window=_window(layer),
        taps=_taps(config),
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_output=bool(config.get("norm_output")),
        verifier=str(verifier.get("name_or_path") or ""),
        license=read_license(source, config.get("license")),
    )


def _layer_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    layer = config.get("transformer_layer_config", config)
    return layer if isinstance(layer, Mapping) else config


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or not 0 < value < 1 << 24:
        raise ExportError(f"config.json says {name} {value!r}: a number of a drafting head is needed")
    return value


def _scaling(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return RoPE's parameters, with a rope_type."""
    found = {**(layer.get("rope_scaling") or {}), **(layer.get("rope_parameters") or {})}
    return {**found, "rope_type": found.get("rope_type") or found.get("type") or "default"}


def _divisors(scaling: Mapping[str, Any], *, base: float, size: int) -> FloatArray:
    """Return what Llama 3's scaling divides each frequency by (transformers, modeling_rope_utils)."""
    factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    waves = 2 * math.pi * base ** (np.arange(0, size, 2, dtype=np.float64) / size)
    kept = np.clip((float(scaling["original_max_position_embeddings"]) / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def _window(layer: Mapping[str, Any]) -> int:
    size = layer.get("sliding_window") or 0
    if kinds := layer.get("layer_types"):
        return size if kinds[0] == "sliding_attention" else 0
    return size if layer.get("use_sliding_window", not str(layer.get("model_type", "")).startswith("qwen")) else 0


def _taps(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers whose inputs are read; NeMo and SpecForge name those whose outputs they are."""
    inner = config.get("eagle_config") or {}
    outputs = inner.get("eagle_aux_hidden_state_layer_ids") or ()
    found = config.get("eagle_aux_hidden_state_layer_ids") or [layer + 1 for layer in outputs]
    return tuple(found)


def _ids(tensors: Mapping[str, HeadTensor], shape: HeadShape) -> IntArray | None:
    """Return each row's token id. d2t: what a row adds to its index. t2d: which ids have a row."""
    d2t, t2d = (tensors.get(name) or tensors.get(f"model.{name}") for name in ("d2t", "t2d"))
    offsets = None if d2t is None else np.asarray(d2t.read(), np.int64).reshape(-1)
    if offsets is not None and len(offsets) != shape.rows:
        raise ExportError(f"d2t has {len(offsets)} ids for {shape.rows} rows of lm_head: download the head again")
    ids: IntArray = np.arange(shape.rows, dtype=np.int64) + (0 if offsets is None else offsets)
    kept = np.sort(ids) if t2d is None else np.flatnonzero(np.asarray(t2d.read()))
    if len(kept) and not np.array_equal(kept, np.sort(ids)):
        raise ExportError("d2t and t2d name different tokens: the head is damaged; download it again")
    return ids
