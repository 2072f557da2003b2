"""A model's sizes, read from config.json, and checks for what the engine cannot run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ALL, MAMBA2
from edgedecode.typed_json import Count, Finite, JsonValue, Positive

from ..frameworks import fields_of
from .quantize import Scheme

_ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope", "proportional")
_LONG_ROPE_NAMES = ("longrope", "su")
_HEAD_MULTIPLE = 16
_TEXT_CLASSES = {
    "gemma3": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
}
"""The classes of multimodal models' text parts, by model_type in their text_config, without `_text`."""
_SHARED = ("bos_token_id", "eos_token_id", "license", "pad_token_id", "quantization_config", "tie_word_embeddings")
"""What the configuration of a multimodal model may say for its text part."""
_EXPERTS = re.compile(r"Moe(?!Hybrid)|_moe|GptOss|gpt_oss|Mixtral")
_DENSE = "export a dense model of its family"
EndIds: TypeAlias = Count | tuple[Count, ...] | None
"""Ids that end an answer."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What config.json says about the kind of model."""

    architectures: tuple[str, ...] | None = None
    model_type: Any = None
    auto_map: Any = None
    quantization_config: Any = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The other fields of config.json that the export reads; those without a type are read where they are used."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    shared_intermediate_size: Positive | None = None
    block_auto_adjust_ff_dim: bool = False
    block_ffn_dim_multiplier: Finite | None = None
    block_multiple_of: Positive = 256
    num_local_experts: Count | None = None
    num_experts: Count | None = None
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    tie_word_embeddings: bool | None = None
    use_bidirectional_attention: Any = None
    rope_parameters: Any = None
    rope_scaling: Any = None
    original_max_position_embeddings: Any = None
    bos_token_id: Any = None
    pad_token_id: Any = None
    eos_token_id: EndIds = None
    license: Any = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes, from its configuration."""

    architecture: str
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    rows: int
    context: int
    tied: bool
    short_context: int = 0
    """Number of positions up to which a long-rope model uses its short factors, or another one leaves its queries as
    they are; 0: a model of neither kind."""

    @property
    def projections(self) -> Mapping[str, int]:
        """Inner dimensions of the quantized matrices, by their names in the configuration."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_attention_heads × head_dim": self.heads * self.head_size,
        }

    @property
    def parameters(self) -> int:
        """Number of parameters in projections and embeddings, which is nearly all."""
        return self.layers * sum(self.matrices.values()) + self.embedding * (1 if self.tied else 2)

    @property
    def matrices(self) -> Mapping[str, int]:
        """Number of parameters in a layer's matrices, by name; those stored as one are counted together."""
        queries, keys = self.hidden * self.head_size * self.heads, self.hidden * self.head_size * 2 * self.kv_heads
        fused = ALL[self.architecture].fused
        inputs = {"qkv": queries + keys} if fused else {"q": queries, "k_v": keys}
        return {**inputs, "o": queries, "gate_up": 2 * self.hidden * self.mlp, "down": self.hidden * self.mlp}

    @property
    def embedding(self) -> int:
        return self.rows * self.hidden


def read_config(value: JsonValue, *, name: str) -> tuple[ModelConfig, Shape]:
    """Read a model's config.json. Raises ExportError for an unknown architecture, or a field of the wrong type.

    Python code in the folder is never run. Naming some (auto_map) is not an error by itself: configurations often still
    do so for architectures that transformers supports by now.
    """
    value = text_part(value)
    kind = fields_of(value, _Kind, f"{name}: config.json")
    names = kind.architectures or ()
    if not names or names[0] not in ALL:
        if not names and not kind.model_type:
            raise ExportError(f"the config.json of {name} names no architecture: give the folder of a whole model")
        found = names[0] if names else f"model_type {kind.model_type!r}"
        if kind.auto_map:
            raise ExportError(
                f"{name} is a {found} that needs its own Python code (auto_map in config.json), which is never run: "
                f"use a model whose architecture is supported: {', '.join(ALL)}"
            )
        if _EXPERTS.search(found):
            raise ExportError(f"{name} is a {found}, a mixture of experts, which is not supported: {_DENSE}")
        raise ExportError(f"{name} is a {found}; supported are {', '.join(ALL)}, and others as GGUF files on llama.cpp")
    if (method := kind.quantization_config) is not None:
        used = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ExportError(f"{name} is already quantized ({used}): give the original, unquantized model")
    config, architecture = fields_of(value, ModelConfig, f"{name}: config.json"), ALL[names[0]]
    if experts := config.num_local_experts or config.num_experts:
        raise ExportError(f"{name} is a mixture of {experts} experts, which is not supported: {_DENSE}")
    heads, hidden = config.num_attention_heads, config.hidden_size
    return config, Shape(
        architecture=names[0],
        hidden=hidden,
        mlp=_mlp(config, names[0]),
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_size=config.head_dim or architecture.head_size or hidden // heads,
        rows=config.vocab_size,
        context=config.max_position_embeddings,
        tied=architecture.tied if config.tie_word_embeddings is None else config.tie_word_embeddings,
        short_context=_short_context(config),
    )


def _mlp(config: ModelConfig, architecture: str) -> int:
    """Return the width of a layer's feed-forward part, as transformers' Granite 4 and LFM2 derive it."""
    if ALL[architecture].recurrent == MAMBA2 and config.shared_intermediate_size:
        return config.shared_intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return config.intermediate_size
    size, unit = (
        int((config.block_ffn_dim_multiplier or 1) * int(2 * config.intermediate_size / 3)),
        config.block_multiple_of,
    )
    return -(-size // unit) * unit


def text_part(value: JsonValue) -> JsonValue:
    """Return the configuration of a multimodal model's text part; any other configuration as it is."""
    text = value.get("text_config") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(text, dict):
        return value
    kind = str(text.get("model_type", "")).removesuffix("_text")
    shared = {key: each for key, each in value.items() if key in _SHARED and each is not None}
    return {**shared, **text, "architectures": [_TEXT_CLASSES.get(kind, f"{kind} (text part)")]}


def check_engine(config: ModelConfig, shape: Shape, *, name: str, body: Scheme, head: Scheme) -> None:
    """Raise ExportError if the attention and matrix kernels cannot run the model."""
    if shape.head_size % _HEAD_MULTIPLE:
        raise ExportError(
            f"{name} has a head size of {shape.head_size}; the attention kernel needs a multiple of {_HEAD_MULTIPLE}: "
            f"use another model (padding the heads would change its files)"
        )
    if shape.heads % shape.kv_heads:
        raise ExportError(
            f"{name} has {shape.heads} heads, which is not a multiple of its {shape.kv_heads} key-value heads"
        )
    if config.use_bidirectional_attention not in (None, False, "vision"):  # of images only
        raise ExportError(f"{name} attends in both directions (use_bidirectional_attention): it does not generate text")
    for kind in _rope_kinds(config):
        if kind not in _ROPE_KINDS:
            raise ExportError(
                f"{name} uses rotary positions of type {kind!r}; supported are {', '.join(_ROPE_KINDS)}: "
                f"set rope_parameters to one of them, or use another model"
            )
    for title, size in shape.projections.items():
        if body.quantized and size % body.block_size:
            raise ExportError(
                f"{name} has {title} {size}, not a multiple of the block size {body.block_size}: {_suggestion(size)}"
            )
    if head.quantized and shape.hidden % head.block_size:
        raise ExportError(
            f"{name} has hidden_size {shape.hidden}, not a multiple of {head.block_size}: {_suggestion(shape.hidden)}"
        )


def _suggestion(size: int) -> str:
    return "use --block-size 32" if size % 32 == 0 else "use --bits 16 --head-bits 16"


def _short_context(config: ModelConfig) -> int:
    """Return `Shape.short_context`. Raises ExportError if it is missing."""
    key, places = "original_max_position_embeddings", (config.rope_parameters, config.rope_scaling)
    given = [place for place in places if isinstance(place, Mapping)]
    tempered = any(place.get("llama_4_scaling_beta") for place in given)
    if not tempered and "longrope" not in _rope_kinds(config):
        return 0
    found = next((place[key] for place in given if place.get(key)), config.original_max_position_embeddings)
    if not isinstance(found, int) or found < 1:
        kind = "llama_4_scaling_beta" if tempered else "longrope"
        raise ExportError(f"config.json uses {kind} but names no {key}: add it")
    return found


def _rope_kinds(config: ModelConfig) -> list[str]:
    """Return the types of rotary positions: one, or one per type of layer."""
    for value in (config.rope_parameters, config.rope_scaling):
        if isinstance(value, dict):
            nested = [inner for inner in value.values() if isinstance(inner, dict)]
            return [_kind(inner) for inner in nested or [value]]
    return ["default"]


def _kind(value: Mapping[str, JsonValue]) -> str:
    kind = str(value.get("rope_type", value.get("type", "default")))
    return "longrope" if kind in _LONG_ROPE_NAMES else kind
