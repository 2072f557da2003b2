"""A network's sizes and constants under llama.cpp's keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.architectures import Shape
from ..graph.network import SLIDING, Windows
from .layouts import Layout
from .limits import context_limit
from .rotary import Rotation

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

__all__ = ["Identity", "write_metadata"]

_UNCAPPED = 1e6
"""A soft cap that caps nothing: where the key is left out, llama.cpp takes Gemma 2's own."""
_FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q4_0": "MOSTLY_Q4_0", "Q8_0": "MOSTLY_Q8_0"}


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
