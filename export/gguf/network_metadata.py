"""Writes a network's sizes and constants under llama.cpp's keys.

Where llama.cpp would compute differently from the network, the difference is folded into a norm, the context is
shortened, or the export is refused. No file gives wrong results silently.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import CONVOLUTION, GATED_DELTA, MAMBA2, Architecture

from ..graph.model_shape import Shape
from ..graph.network import FULL, SLIDING, Windows
from .rotation import Rotation

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

_UNCAPPED = 1e6
"""A soft cap without effect, because llama.cpp uses Gemma 2's own if the key is missing."""
_FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q4_0": "MOSTLY_Q4_0", "Q8_0": "MOSTLY_Q8_0"}
_ATTENTION = (FULL, "attention")
_WITHOUT = "export without gguf among the --formats"


def write_metadata(
    writer: GGUFWriter,
    network: PreTrainedModel,
    *,
    shape: Shape,
    layout: Architecture,
    rotation: Rotation,
    windows: Windows,
    kind: str,
) -> None:
    """Add all keys except the tokenizer's, the name and the licence.

    kind: the ggml type of most matrices, not counting embedding and head.
    """
    import gguf

    writer.add_file_type(int(gguf.LlamaFileType[_FILE_TYPES[kind]]))
    if kind.startswith("Q"):
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _sizes(
        writer, shape, layout, context=context_limit(windows, layout, context=network.config.max_position_embeddings)
    )
    config: Any = network.config
    writer.add_layer_norm_rms_eps(config.norm_eps if layout.name == "lfm2" else config.rms_norm_eps)
    _rotary(writer, rotation)
    if layout.windows:
        _windows(writer, network)
    if layout.attention_cap:
        writer.add_attn_logit_softcapping(network.config.attn_logit_softcapping or _UNCAPPED)
    if layout.windows and not layout.recurrent:
        writer.add_final_logit_softcapping(network.config.final_logit_softcapping or _UNCAPPED)
    if layout.name.startswith("granite"):
        _multipliers(writer, network)
    if layout.normed_values:
        _shared(writer, config)
    if layout.recurrent:
        _recurrent(writer, config, layout, kv_heads=shape.kv_heads)
    if layout.tempered:
        parameters = network.config.rope_parameters
        writer.add_attn_temperature_scale(parameters["llama_4_scaling_beta"])
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])


def _sizes(writer: GGUFWriter, shape: Shape, layout: Architecture, *, context: int) -> None:
    writer.add_vocab_size(shape.rows)
    writer.add_context_length(context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    if layout.normed_values:
        return  # layers differ in the rest
    writer.add_feed_forward_length(shape.mlp)
    if not layout.recurrent or layout.recurrent == GATED_DELTA:
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
    """Add sliding windows even if they exceed the context, because their layers may have different RoPE."""
    config: Any = network.config
    if SLIDING in (kinds := config.layer_types) and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == SLIDING for kind in kinds])


def _shared(writer: GGUFWriter, config: Any) -> None:  # noqa: ANN401
    """Add the sizes of Gemma 4's layers, and which of them have no keys and values of their own."""
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    shared, doubled = _shared_layers(config), config.use_double_wide_mlp
    writer.add_feed_forward_length(
        [config.intermediate_size * (1 + (doubled and index >= len(layers) - shared)) for index in range(len(layers))]
    )
    writer.add_head_count_kv([each.num_key_value_heads for each in layers])
    full, window = (config.per_layer_config[kind].head_dim for kind in (FULL, SLIDING))
    writer.add_key_length(full)
    writer.add_value_length(full)
    writer.add_key_length_swa(window)
    writer.add_value_length_swa(window)
    writer.add_rope_dimension_count_swa(window)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)


def _shared_layers(config: Any) -> int:  # noqa: ANN401
    return int(config.num_kv_shared_layers or 0)


def _multipliers(writer: GGUFWriter, network: PreTrainedModel) -> None:
    config: Any = network.config
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _recurrent(writer: GGUFWriter, config: Any, layout: Architecture, *, kv_heads: int) -> None:  # noqa: ANN401
    """Add which layers have attention, and the sizes of the others (llama.cpp's conversion folder)."""
    full = [kind in _ATTENTION for kind in config.layer_types]
    if layout.recurrent == CONVOLUTION:
        writer.add_shortconv_l_cache(config.conv_L_cache)
    elif layout.recurrent == MAMBA2:
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    if layout.recurrent != GATED_DELTA:
        writer.add_head_count_kv([kv_heads * each for each in full])
        return
    writer.add_rope_dimension_sections([*config.rope_parameters.get("mrope_section", (11, 11, 10)), 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    every = full.index(True) + 1 if any(full) else 0
    if every and full == [(layer + 1) % every == 0 for layer in range(len(full))]:
        writer.add_full_attention_interval(every)
    else:
        writer.add_array(f"{layout.name}.attention.recurrent_layers", [not each for each in full])


def check_network(network: PreTrainedModel, shape: Shape, layout: Architecture, rotation: Rotation) -> None:
    """Raise ExportError if llama.cpp does not support this configuration."""
    config: Any = network.config
    if layout.square and shape.heads * shape.head_size != shape.hidden:
        raise ExportError(
            f"llama.cpp's {layout.name} requires {shape.heads} heads of {shape.head_size} to equal the hidden size "
            f"{shape.hidden}: {_WITHOUT}"
        )
    if layout.interleaved and rotation.size != shape.head_size:
        raise ExportError(
            f"llama.cpp's {layout.name} rotates all {shape.head_size} elements of a head, this model {rotation.size}: "
            f"{_WITHOUT}"
        )
    if getattr(config, "hidden_act", None) not in (None, "silu") and not layout.gelu:
        raise ExportError(f"llama.cpp's {layout.name} has the activation silu, not {config.hidden_act!r}: {_WITHOUT}")
    if layout.normed_values and _shared_layers(config):
        own = config.layer_types[: config.num_hidden_layers - _shared_layers(config)]
        if own[-2:] != [SLIDING, FULL]:
            raise ExportError(
                f"llama.cpp's {layout.name} shares the keys and values of a layer with a window and of a following one "
                f"without, this model those of other layers: {_WITHOUT}"
            )
    step = layout.unrotated
    if step and any(bool(used) != bool((place + 1) % step) for place, used in enumerate(config.no_rope_layers)):
        raise ExportError(
            f"llama.cpp's {layout.name} has no RoPE in every {step}th layer, this model in others: {_WITHOUT}"
        )
    if layout.name == "gemma2" and query_factor(network, shape, layout) != 1.0:
        raise ExportError(
            f"llama.cpp's {layout.name} scales queries by the head size {shape.head_size}, this model by "
            f"query_pre_attn_scalar {config.query_pre_attn_scalar}: {_WITHOUT}"
        )


def query_factor(network: PreTrainedModel, shape: Shape, layout: Architecture) -> float:
    """Return the factor for Gemma's queries that compensates for llama.cpp's built-in scale; 1 for other models."""
    if not layout.wide_layers:
        return 1.0
    largest = shape.layers == layout.wide_layers
    theirs = shape.hidden // shape.heads if largest else shape.head_size
    ours = float(getattr(network.config, "query_pre_attn_scalar", theirs))
    return math.sqrt(theirs / ours)


def context_limit(windows: Windows, layout: Architecture, *, context: int) -> int:
    """Return the context within which llama.cpp is correct: the window's size if it does not support windows."""
    return context if layout.windows or not windows.size else min(windows.size, context)


def window_notes(windows: Windows, layout: Architecture, *, context: int) -> tuple[str, ...]:
    """Return a note on the limit, if there is one."""
    if (limit := context_limit(windows, layout, context=context)) == context:
        return ()
    return (
        f"the GGUF file's context is {limit} of {context} tokens: llama.cpp's {layout.name} has no sliding windows, "
        f"so longer texts would give wrong results",
    )
