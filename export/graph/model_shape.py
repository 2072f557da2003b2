"""A model's sizes, read from config.json, and checks for what the engine cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.typed_json import JsonValue

from ..json_fields import Fields
from .quantize import Scheme

_ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
_LONG_ROPE_NAMES = ("longrope", "su")
_HEAD_MULTIPLE = 16


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
    """Number of positions up to which a long-rope model uses its short factors; 0: not a long-rope model."""

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
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + self.embedding * (1 if self.tied else 2)

    @property
    def attention_inputs(self) -> int:
        """Number of parameters in a layer's query, key and value."""
        return self.hidden * self.head_size * (self.heads + 2 * self.kv_heads)

    @property
    def embedding(self) -> int:
        return self.rows * self.hidden


def read_shape(config: Fields, *, name: str) -> Shape:
    """Read the sizes of a config.json. Raises ExportError for an unknown architecture.

    Python code in the folder is never run. Naming some (auto_map) is not an error by itself: configurations often still
    do so for architectures that transformers supports by now.
    """
    names = config.texts("architectures") if config.values.get("architectures") else ()
    if not names or names[0] not in ARCHITECTURES:
        kind = config.values.get("model_type")
        if not names and not kind:
            raise ExportError(f"the config.json of {name} names no architecture: give the folder of a whole model")
        found = names[0] if names else f"model_type {kind!r}"
        if config.values.get("auto_map"):
            raise ExportError(
                f"{name} is a {found} that needs its own Python code (auto_map in config.json), which is never run: "
                f"use a model whose architecture is supported: {', '.join(ARCHITECTURES)}"
            )
        raise ExportError(
            f"{name} is a {found}; supported are {', '.join(ARCHITECTURES)}, and others as GGUF files on llama.cpp"
        )
    if (method := config.values.get("quantization_config")) is not None:
        kind = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ExportError(f"{name} is already quantized ({kind}): give the original, unquantized model")
    architecture = ARCHITECTURES[names[0]]
    heads = config.integer("num_attention_heads", low=1)
    hidden = config.integer("hidden_size", low=1)
    return Shape(
        architecture=names[0],
        hidden=hidden,
        mlp=config.integer("intermediate_size", low=1),
        layers=config.integer("num_hidden_layers", low=1),
        heads=heads,
        kv_heads=config.optional_integer("num_key_value_heads", low=1) or heads,
        head_size=config.optional_integer("head_dim", low=1) or architecture.head_size or hidden // heads,
        rows=config.integer("vocab_size", low=1),
        context=config.integer("max_position_embeddings", low=1),
        tied=bool(config.values.get("tie_word_embeddings", architecture.tied)),
        short_context=_short_context(config),
    )


def check_engine(config: Fields, shape: Shape, *, name: str, body: Scheme, head: Scheme) -> None:
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
    if config.values.get("use_bidirectional_attention"):
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


def _short_context(config: Fields) -> int:
    """Return the position where a long-rope model switches factors; 0 for others. Raises ExportError if missing."""
    if "longrope" not in _rope_kinds(config):
        return 0
    places = (config.values.get("rope_parameters"), config.values.get("rope_scaling"), config.values)
    key = "original_max_position_embeddings"
    found = next((place[key] for place in places if isinstance(place, Mapping) and place.get(key)), None)
    if not isinstance(found, int) or found < 1:
        raise ExportError(f"config.json uses longrope but names no {key}: add it")
    return found


def _rope_kinds(config: Fields) -> list[str]:
    """Return the types of rotary positions: one, or one per type of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.values.get(key)
        if isinstance(value, dict):
            nested = [inner for inner in value.values() if isinstance(inner, dict)]
            return [_kind(inner) for inner in nested or [value]]
    return ["default"]


def _kind(value: Mapping[str, JsonValue]) -> str:
    kind = str(value.get("rope_type", value.get("type", "default")))
    return "longrope" if kind in _LONG_ROPE_NAMES else kind
