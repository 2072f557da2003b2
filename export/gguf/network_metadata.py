"""A network's sizes and constants under llama.cpp's keys.

What llama.cpp computes otherwise than the network is refused, folded into a norm, or a shorter context: nothing is
carried that would be computed wrongly without a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError

from ..graph.model_shape import Shape
from ..graph.network import SLIDING, Windows
from .layouts import Layout, Rotation

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

__all__ = ["Identity", "check_network", "query_factor", "window_notes", "write_metadata"]

_UNCAPPED = 1e6
"""A soft cap that caps nothing: where the key is left out, llama.cpp takes Gemma 2's own."""
_FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q4_0": "MOSTLY_Q4_0", "Q8_0": "MOSTLY_Q8_0"}
_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries llama.cpp scales by hidden size over heads; all others by the head size."""
_SMOLLM3_STEP = 4
_WITHOUT = "export without gguf among the --formats"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the file says of itself."""

    name: str
    license: str
    kind: str
    """The ggml type of most tensors."""


def write_metadata(
    writer: GGUFWriter,
    network: PreTrainedModel,
    *,
    shape: Shape,
    layout: Layout,
    rotation: Rotation,
    windows: Windows,
    identity: Identity,
) -> None:
    """Add every key but the tokenizer's."""
    _general(writer, identity)
    _sizes(writer, shape, context=context_limit(windows, layout, context=network.config.max_position_embeddings))
    writer.add_layer_norm_rms_eps(network.config.rms_norm_eps)
    _rotary(writer, rotation)
    if layout.windows:
        _windows(writer, network)
    if layout.name == "gemma2":
        writer.add_attn_logit_softcapping(network.config.attn_logit_softcapping or _UNCAPPED)
    if layout.windows:
        writer.add_final_logit_softcapping(network.config.final_logit_softcapping or _UNCAPPED)
    if layout.name == "granite":
        _multipliers(writer, network)


def _general(writer: GGUFWriter, identity: Identity) -> None:
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(identity.name)
    writer.add_license(identity.license)
    writer.add_file_type(int(gguf.LlamaFileType[_FILE_TYPES[identity.kind]]))
    if identity.kind.startswith("Q"):
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _sizes(writer: GGUFWriter, shape: Shape, *, context: int) -> None:
    writer.add_vocab_size(shape.rows)
    writer.add_context_length(context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)


def _rotary(writer: GGUFWriter, rotation: Rotation) -> None:
    import gguf

    writer.add_rope_dimension_count(rotation.size)
    writer.add_rope_freq_base(rotation.base)
    if rotation.window_base is not None:
        writer.add_rope_freq_base_swa(rotation.window_base)
    if rotation.kind:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rotation.kind))
        writer.add_rope_scaling_factor(rotation.factor)
    if rotation.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rotation.original)
        writer.add_rope_scaling_yarn_beta_fast(rotation.betas[0])
        writer.add_rope_scaling_yarn_beta_slow(rotation.betas[1])
    if rotation.strength != 1.0:
        writer.add_rope_scaling_attn_factors(rotation.strength)


def _windows(writer: GGUFWriter, network: PreTrainedModel) -> None:
    """Name windows even where the whole context fits in: their layers may rotate otherwise."""
    config: Any = network.config
    if SLIDING in (kinds := config.layer_types) and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == SLIDING for kind in kinds])


def _multipliers(writer: GGUFWriter, network: PreTrainedModel) -> None:
    config: Any = network.config
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def check_network(network: PreTrainedModel, shape: Shape, layout: Layout, rotation: Rotation) -> None:
    """Raise ExportError for what llama.cpp cannot compute of this configuration."""
    config: Any = network.config
    if layout.square and shape.heads * shape.head_size != shape.hidden:
        raise ExportError(
            f"llama.cpp's {layout.name} wants {shape.heads} heads of {shape.head_size} to make the hidden size "
            f"{shape.hidden}: {_WITHOUT}"
        )
    if layout.interleaved and rotation.size != shape.head_size:
        raise ExportError(
            f"llama.cpp's {layout.name} rotates whole heads of {shape.head_size}, this model {rotation.size} of each: "
            f"{_WITHOUT}"
        )
    if getattr(config, "hidden_act", None) not in (None, "silu") and not layout.shifted:
        raise ExportError(
            f"llama.cpp's {layout.name} has silu for its activation, not {config.hidden_act!r}: {_WITHOUT}"
        )
    if layout.name == "smollm3" and not _usual_positions(config.no_rope_layers):
        raise ExportError(
            f"llama.cpp's smollm3 leaves positions out in every fourth layer, this one elsewhere: {_WITHOUT}"
        )
    if layout.name in _LARGEST_GEMMAS and layout.name != "gemma3" and query_factor(network, shape, layout) != 1.0:
        raise ExportError(
            f"llama.cpp's {layout.name} scales queries by the head size {shape.head_size}, this model by "
            f"query_pre_attn_scalar {config.query_pre_attn_scalar}: {_WITHOUT}"
        )


def query_factor(network: PreTrainedModel, shape: Shape, layout: Layout) -> float:
    """Return what Gemma's queries must be multiplied by so that llama.cpp's own scale makes them right."""
    if layout.name not in _LARGEST_GEMMAS:
        return 1.0
    largest = shape.layers == _LARGEST_GEMMAS[layout.name]
    theirs = shape.hidden // shape.heads if largest else shape.head_size
    ours = float(getattr(network.config, "query_pre_attn_scalar", theirs))
    return math.sqrt(theirs / ours)


def context_limit(windows: Windows, layout: Layout, *, context: int) -> int:
    """Return the positions up to which llama.cpp computes the same: without windows, where the first would end."""
    return context if layout.windows or not windows.size else min(windows.size, context)


def window_notes(windows: Windows, layout: Layout, *, context: int) -> tuple[str, ...]:
    """Return what a user must know of the limit, a sentence each."""
    if (limit := context_limit(windows, layout, context=context)) == context:
        return ()
    return (
        f"the GGUF file's context is {limit} of {context} tokens: llama.cpp's {layout.name} has no sliding windows, "
        f"and longer texts would be computed otherwise",
    )


def _usual_positions(layers: Sequence[int]) -> bool:
    return all(bool(used) == bool((place + 1) % _SMOLLM3_STEP) for place, used in enumerate(layers))
