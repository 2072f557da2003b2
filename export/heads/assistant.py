"""Gemma 4's assistant, read from its publisher's folder and written as a pack's drafting head.

Facts: transformers' configuration and modeling files of gemma4_assistant. Its ordered embeddings, which find the ids
that are worth a score, are left out: a head proposes the frequent ids alone, and scores all of them.
"""

import re
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ASSISTANT
from edgedecode.gguf.contents import Contents, read_contents
from edgedecode.gguf.encoding import encoded_field, write_encoded
from edgedecode.gguf.fields import ARRAY, BOOL, INT32, Value
from edgedecode.gguf.header import OUTPUT
from edgedecode.pack.manifest import ModelEntry

from ..base_model import read_json, read_license
from ..frameworks import fields_of, refused
from ..gguf.rotation import STILL
from ..graph.network import FULL, SLIDING
from .gguf_head import written_tensors
from .head import FACTORS, HeadTensor
from .head_entry import MOST_CONTEXT
from .layouts import head_tensors

_KINDS = ("gemma4_assistant", "gemma4_unified_assistant")
_TARGET = "gemma4"
_MODEL = {
    "pre_projection": "nextn.pre_projection",
    "post_projection": "nextn.post_projection",
    "model.norm": "output_norm",
    "model.embed_tokens": OUTPUT.removesuffix(".weight"),
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in ("gate", "up", "down")},
    "layer_scalar": "layer_output_scale",
}
_IGNORED = re.compile(r"masked_embedding\..*|lm_head\.weight|.*rotary_emb.*")


@dataclass(frozen=True, slots=True)
class _Text:
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    rope_parameters: dict[str, Any]
    sliding_window: int = 512
    rms_norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class _Config:
    backbone_hidden_size: int
    text_config: _Text


def is_assistant(source: Path) -> bool:
    """Return whether a folder holds an assistant."""
    value = read_json(source / "config.json") if source.is_dir() else None
    return isinstance(value, dict) and value.get("model_type") in _KINDS


def read_assistant(source: Path) -> "AssistantFolder":
    """Read a folder. Raises ExportError in one line."""
    config = fields_of(read_json(source / "config.json"), _Config, f"{source.name}: config.json")
    placed: dict[str, HeadTensor] = {}
    for name, tensor in head_tensors(source).items():
        if _IGNORED.fullmatch(name):
            continue
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        inside = name.startswith("model.layers.")
        found = (_LAYER if inside else _MODEL).get((rest if inside else name).removesuffix(".weight"))
        if found is None:
            raise ExportError(f"{source} has the tensor {name[:60]}, which an assistant has no use for here")
        placed[f"blk.{layer}.{found}.weight" if inside else f"{found}.weight"] = tensor
    layers, kinds = range(config.text_config.num_hidden_layers), config.text_config.layer_types
    wanted = [f"blk.{layer}.{part}.weight" for layer in layers for part in _LAYER.values()]
    missing = [name for name in (*wanted, *(f"{part}.weight" for part in _MODEL.values())) if name not in placed]
    if missing or len(kinds) != len(layers) or {*kinds} != {FULL, SLIDING}:
        raise ExportError(
            f"{source} is no whole assistant ({', '.join(missing[:2]) or 'its layer_types'}): get it again"
        )
    return AssistantFolder(source, config, placed)


@dataclass(frozen=True, slots=True)
class AssistantFolder:
    """An assistant's configuration, and its tensors under llama.cpp's names."""

    source: Path
    config: _Config
    tensors: dict[str, HeadTensor]

    def _head_size(self, kind: str) -> int:
        layer = self.config.text_config.layer_types.index(kind)
        return self.tensors[f"blk.{layer}.attn_q_norm.weight"].shape[0]

    def _of_target(self, target: ModelEntry, path: Path) -> Contents:
        """Return the contents of the target's file. Raises ExportError if the assistant is for another target."""
        if target.architecture != _TARGET or not target.gguf:
            raise ExportError(f"the assistant is for Gemma 4 in a GGUF file, the target is a {target.architecture}")
        with refused():
            contents = read_contents(path)
        theirs = [contents.integer(f"{_TARGET}.attention.key_length{each}") for each in ("", "_swa")]
        rows = self.tensors[OUTPUT].shape[0]
        pairs = {
            "hidden states of": (self.config.backbone_hidden_size, target.hidden_size),
            "ids": (rows, target.rows),
            "keys of": ([self._head_size(kind) for kind in (FULL, SLIDING)], theirs),
        }
        for what, (found, expected) in pairs.items():
            if found != expected:
                raise ExportError(
                    f"the assistant is for {what} {found}, its target has {expected}: give the target's own"
                )
        return contents

    def write(
        self, file: BinaryIO, target: ModelEntry, *, path: Path, ids: IntArray | None, bits: int, name: str
    ) -> ModelEntry:
        """Write the file `name` of a pack, and return its entry. Raises ExportError for another target's assistant.

        path: of the target's file. ids: those that it proposes; None: all.
        """
        fields = self._fields(target, self._of_target(target, path))
        text, tensors = self.config.text_config, dict(self.tensors)
        if ids is not None:
            whole = tensors[OUTPUT]
            tensors[OUTPUT] = HeadTensor((len(ids), whole.shape[1]), partial(_rows, whole, ids))
        tensors[FACTORS] = HeadTensor.of(self._factors())
        write_encoded(file, fields, written_tensors(tensors, ids, bits=bits))
        return ModelEntry(
            architecture=ASSISTANT.name,
            rows=tensors[OUTPUT].shape[0],
            context=min(target.context, MOST_CONTEXT),
            hidden_size=text.hidden_size,
            layers=text.num_hidden_layers,
            kv_heads=target.kv_heads,
            head_size=self._head_size(FULL),
            parameters=sum(prod(tensor.shape) for tensor in tensors.values()),
            weights=name,
            graphs={},
            bits=bits,
            block_size=32 if bits < 16 else 0,
            head_bits=bits,
            license=read_license(self.source, None),
            source=self.source.resolve().name,
            window=text.sliding_window + 1,
            gguf=name,
            taps=(target.layers + 1,),
        )

    def _fields(self, target: ModelEntry, contents: Contents) -> list[bytes]:
        text, kind = self.config.text_config, ASSISTANT.name
        full, window = (self._head_size(each) for each in (FULL, SLIDING))
        heads = self.tensors["blk.0.attn_q.weight"].shape[0] // self._head_size(text.layer_types[0])
        numbers: dict[str, Value] = {
            "block_count": text.num_hidden_layers,
            "context_length": target.context,
            "embedding_length": text.hidden_size,
            "feed_forward_length": self.tensors["blk.0.ffn_up.weight"].shape[0],
            "target_hidden_size": self.config.backbone_hidden_size,
            "attention.head_count": heads,
            "attention.key_length": full,
            "attention.key_length_swa": window,
            "attention.layer_norm_rms_epsilon": float(text.rms_norm_eps),
            "attention.sliding_window": text.sliding_window + 1,  # before the row, which is not among the keys
            "rope.dimension_count": full,
            "rope.dimension_count_swa": window,
            "rope.freq_base": float(text.rope_parameters[FULL]["rope_theta"]),
            "rope.freq_base_swa": float(text.rope_parameters[SLIDING]["rope_theta"]),
        }
        listed = contents.layers.get(f"{_TARGET}.attention.head_count_kv")
        own = [target.kv_heads, target.kv_heads] if listed is None else self._kv_heads(contents, listed)
        windows = [each == SLIDING for each in text.layer_types]
        return [
            encoded_field("general.architecture", kind),
            *(encoded_field(f"{kind}.{name}", value) for name, value in numbers.items()),
            encoded_field(
                f"{kind}.attention.head_count_kv", [own[each] for each in windows], kind=ARRAY, element=INT32
            ),
            encoded_field(f"{kind}.attention.sliding_window_pattern", windows, kind=ARRAY, element=BOOL),
        ]

    @staticmethod
    def _kv_heads(contents: Contents, listed: tuple[int, ...]) -> list[int]:
        """Return the KV heads of the target's layers without a window, and with one."""
        windows = contents.layers[f"{_TARGET}.attention.sliding_window_pattern"]
        return [next(each for each, has in zip(listed, windows, strict=True) if bool(has) == kind) for kind in (0, 1)]

    def _factors(self) -> FloatArray:
        """Return the divisors of the frequencies of layers without a window, of which only the first ones turn."""
        half = self._head_size(FULL) // 2
        turning = int(self.config.text_config.rope_parameters[FULL].get("partial_rotary_factor", 1.0) * half)
        return np.where(np.arange(half) < turning, 1.0, STILL).astype(np.float32)


def _rows(whole: HeadTensor, ids: IntArray) -> FloatArray:
    return np.asarray(whole.read()[ids], np.float32)
