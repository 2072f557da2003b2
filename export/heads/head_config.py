"""What config.json says of a head, in the flat layout's fields and in those of speculators."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError

from ..base_model import read_json, read_license
from ..frameworks import fields_of
from .head import HeadShape

_TYPES = ("default", "llama3", "linear")


@dataclass(frozen=True, slots=True)
class _Rope:
    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 0.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_max_position_embeddings: float = 0.0
    partial_rotary_factor: float | None = None
    full_attention: Any = None
    sliding_attention: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The fields of the one layer, those of a Llama's configuration."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    num_hidden_layers: int = 1
    max_position_embeddings: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    layer_types: tuple[str, ...] | None = None
    model_type: str = ""
    partial_rotary_factor: float | None = None


@dataclass(frozen=True, slots=True)
class _Taps:
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Verifier:
    name_or_path: str | None = None


@dataclass(frozen=True, slots=True)
class _Speculators:
    verifier: _Verifier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    architectures: tuple[str, ...] | None = None
    speculators_model_type: str | None = None
    transformer_layer_config: dict[str, Any] | None = None
    text_config: dict[str, Any] | None = None
    dflash_config: Any = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    eagle_config: _Taps | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    speculators_config: _Speculators | None = None
    license: Any = None


class HeadConfig:
    """A head's config.json. Raises ExportError if it is missing, or has a field of another type."""

    def __init__(self, folder: Path) -> None:
        value = read_json(folder / "config.json")
        if not isinstance(value, dict):
            raise ExportError(f"{folder} has no config.json: give the folder of a drafting head")
        if "medusa_num_heads" in value:
            raise ExportError(
                f"{folder} holds Medusa heads, which are not supported: give one of EAGLE-3's form, DSpark, "
                f"DFlash or MTP"
            )
        self._folder, where = folder, f"{folder.name}: config.json"
        self._fields = fields_of(value, _Fields, where)
        inner = self._fields.transformer_layer_config or self._fields.text_config
        self._layer = fields_of(inner or value, _Layer, where)
        if self._rope.full_attention is not None or self._rope.sliding_attention is not None:
            raise ExportError(f"{where} has RoPE parameters by kind of layer: those of one layer are supported")

    @property
    def kind(self) -> str:
        """What it says that it is; empty: nothing."""
        fields = self._fields
        said = fields.speculators_model_type or " ".join(fields.architectures or ())
        return f"{said} dflash" if fields.dflash_config is not None else said

    @property
    def is_speculators(self) -> bool:
        return self._fields.speculators_model_type is not None

    @property
    def layers(self) -> int:
        return self._layer.num_hidden_layers

    @property
    def hidden(self) -> int:
        return self._layer.hidden_size

    @property
    def target_hidden(self) -> int:
        return self._fields.target_hidden_size or self.hidden

    @property
    def head_size(self) -> int:
        layer = self._layer
        return layer.head_dim or layer.hidden_size // max(1, layer.num_attention_heads)

    @property
    def rotated(self) -> int:
        """The values of each head that RoPE rotates, from the first."""
        share = self._rope.partial_rotary_factor or self._layer.partial_rotary_factor or 1.0
        if not 0 < share <= 1:
            raise ExportError(f"config.json says that RoPE rotates {share} of a head's values: download the head again")
        return int(self.head_size * share)

    @property
    def divisors(self) -> FloatArray | None:
        """What Llama 3's scaling divides each frequency by (transformers, modeling_rope_utils); None: it has none."""
        rope = self._rope
        if _type(rope) != "llama3":
            return None
        factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
        original = rope.original_max_position_embeddings
        if not (0 < factor < math.inf and 0 < low < high < math.inf and 0 < original < math.inf):
            raise ExportError(
                f"config.json says factors of {factor}, {low} and {high} for RoPE's llama3 scaling of {original} "
                f"positions: download the head again"
            )
        waves = 2 * math.pi * self._base ** (np.arange(0, self.rotated, 2, dtype=np.float64) / self.rotated)
        kept = np.clip((original / waves - low) / (high - low), 0, 1)
        return (1 / ((1 - kept) / factor + kept)).astype(np.float32)

    @property
    def window(self) -> int:
        """The positions that its first layer sees; 0: all."""
        layer = self._layer
        if layer.layer_types:
            used = layer.layer_types[0] == "sliding_attention"
        else:
            said = layer.use_sliding_window
            used = said if said is not None else not layer.model_type.startswith("qwen")
        return (layer.sliding_window or 0) if used else 0

    def shape(self, *, rows: int | None, norms: Mapping[str, bool]) -> HeadShape:
        """Return the sizes and flags. rows: of lm_head; None: there is none. norms: whether the head has each."""
        fields, layer = self._fields, self._layer
        if layer.num_hidden_layers != 1:
            raise ExportError(f"config.json says {layer.num_hidden_layers} layers: heads have one")
        if None is not rows != (stated := fields.draft_vocab_size) is not None:
            raise ExportError(f"config.json says draft_vocab_size {stated}, lm_head has {rows} rows: download it again")
        for flag, name in ((fields.norm_before_fc, "input_norm"), (fields.fc_norm, "fc_norm.0")):
            if flag and not norms[name]:
                raise ExportError(
                    f"config.json says that there is {name}.weight, which the head lacks: download it again"
                )
        return self._shape(rows or 0)

    def mtp_shape(self, *, gated: bool) -> HeadShape:
        """Return the sizes of the MTP layer of a model whose configuration this is."""
        return replace(self._shape(0), verifier="").as_mtp(gated=gated)

    def plain_shape(self, *, rows: int | None) -> HeadShape:
        """Return the sizes of the layers alone, without what heads of EAGLE-3's form add to them."""
        return replace(self._shape(rows or 0), window=0, norm_before_residual=False, norm_output=False)

    @property
    def has_base(self) -> bool:
        """Whether RoPE's base is stated."""
        return bool(self._rope.rope_theta or self._layer.rope_theta)

    def _shape(self, rows: int) -> HeadShape:
        fields, layer, rope = self._fields, self._layer, self._rope
        if layer.hidden_act != "silu":
            raise ExportError(f"the head's activation is {layer.hidden_act[:40]!r}: silu is supported")
        if (kind := _type(rope)) not in _TYPES:
            raise ExportError(f"the head's RoPE scaling is {kind[:40]!r}: {', '.join(_TYPES)} are supported")
        verifier = fields.speculators_config and fields.speculators_config.verifier
        return HeadShape(
            hidden=layer.hidden_size,
            target_hidden=self.target_hidden,
            rows=rows,
            heads=layer.num_attention_heads,
            kv_heads=layer.num_key_value_heads or layer.num_attention_heads,
            head_size=self.head_size,
            mlp=layer.intermediate_size,
            epsilon=layer.rms_norm_eps,
            base=self._base,
            context=layer.max_position_embeddings or 2048,
            vocabulary=layer.vocab_size,
            stretch=rope.factor if kind == "linear" else 1.0,
            window=self.window,
            taps=self._taps,
            norm_before_residual=bool(fields.norm_before_residual),
            norm_output=bool(fields.norm_output),
            verifier=(verifier and verifier.name_or_path) or "",
            license=read_license(self._folder, fields.license),
            rotated=self.rotated,
        )

    @property
    def _rope(self) -> _Rope:
        return self._layer.rope_parameters or self._layer.rope_scaling or _Rope()

    @property
    def _base(self) -> float:
        return self._rope.rope_theta or self._layer.rope_theta or 10000.0

    @property
    def _taps(self) -> tuple[int, ...]:
        """The layers whose inputs are read; NeMo and SpecForge name those whose outputs they are."""
        fields = self._fields
        outputs = (fields.eagle_config and fields.eagle_config.eagle_aux_hidden_state_layer_ids) or ()
        return fields.eagle_aux_hidden_state_layer_ids or tuple(layer + 1 for layer in outputs)


def _type(rope: _Rope) -> str:
    return rope.rope_type or rope.type or "default"
