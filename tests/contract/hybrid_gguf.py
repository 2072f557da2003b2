"""Writes models with recurrent layers, of transformers' classes, as GGUF files in the form of llama.cpp's converter."""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from transformers import (
    AutoModelForCausalLM,
    GraniteMoeHybridConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
)

Floats = npt.NDArray[np.float32]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{each}_norm": f"attn_{each}_norm" for each in "qk"},
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
"""transformers' name in a layer → llama.cpp's."""
GRANITE_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "shared_mlp.output_linear": "ffn_down",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
}
MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tiny_qwen(**changes: object) -> Qwen3_5TextConfig:
    """Return a small model's configuration: three layers with the delta rule for each with attention."""
    sizes: dict[str, object] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
        },
        "tie_word_embeddings": True,
    }
    return Qwen3_5TextConfig(**{**sizes, **changes})


def tiny_granite() -> GraniteMoeHybridConfig:
    """Return a small model's configuration: Mamba-2 in three of four layers, no rotary embedding, all multipliers."""
    return GraniteMoeHybridConfig(
        vocab_size=96,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=32,
        num_local_experts=0,
        shared_intermediate_size=96,
        max_position_embeddings=1024,
        embedding_multiplier=3.0,
        attention_multiplier=0.1,
        residual_multiplier=0.5,
        logits_scaling=2.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model whose every weight matters: norms differ from one, decays from each other."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(0, 0.3 if "conv1d" in name else 1.5 * value.shape[-1] ** -0.5)
            elif name.endswith("A_log"):
                value.uniform_(-2, 1)
            else:
                value += 0.2 * torch.randn_like(value)
    return model


def rounded(model: PreTrainedModel, quantization: str) -> PreTrainedModel:
    """Return a copy of the model with the weights that its file of this quantization has."""
    found, kind = copy.deepcopy(model), GGMLQuantizationType[quantization]
    with torch.no_grad():
        for name, value in found.named_parameters():
            if value.ndim > 1 and "conv1d" not in name:
                value.copy_(torch.from_numpy(dequantize(quantize(value.numpy(), kind), kind)))
    return found


def write_hybrid(
    model: PreTrainedModel,
    path: Path,
    *,
    quantization: str = "",
    drafting: bool = False,
    fc: Floats | None = None,
    vocabulary: Callable[[GGUFWriter], None] = lambda writer: writer.add_tokenizer_model("none"),
) -> None:
    """Write the model's file; quantization: a type for its matrices, float32 otherwise.

    drafting: with one more layer that predicts further tokens, a copy of the last one. fc: its first matrix; the layer
    adds nothing to that product then.
    """
    config = model.config
    qwen = isinstance(config, Qwen3_5TextConfig)
    writer = GGUFWriter(path, "qwen35" if qwen else "granitehybrid")
    writer.add_block_count(config.num_hidden_layers + drafting)
    if drafting:
        writer.add_nextn_predict_layers(1)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _qwen_fields(writer, config) if qwen else _granite_fields(writer, config)
    vocabulary(writer)
    weights = model.state_dict()
    if drafting:
        last, size = f"model.layers.{config.num_hidden_layers - 1}.", config.hidden_size
        weights |= {
            name.replace(last, f"model.layers.{config.num_hidden_layers}."): each
            for name, each in weights.items()
            if name.startswith(last)
        }
        part = f"blk.{config.num_hidden_layers}.nextn"
        writer.add_tensor(f"{part}.eh_proj.weight", np.ones((size, 2 * size), np.float32) if fc is None else fc)
        for name in weights:
            if fc is not None and name.endswith(
                (f".{config.num_hidden_layers}.self_attn.o_proj.weight", "down_proj.weight")
            ):
                weights[name] = weights[name] * (config.num_hidden_layers != int(name.split(".")[2]))
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            writer.add_tensor(f"{part}.{norm}.weight", np.ones(size, np.float32))
    for name, tensor in weights.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        convert = _qwen_tensor if qwen else _granite_tensor
        for target, values in convert(name, tensor.float(), config).items():
            data = np.ascontiguousarray(values.numpy(), np.float32)
            if quantization and data.ndim == 2 and min(data.shape) > 1 and "conv1d" not in name:
                kind = GGMLQuantizationType[quantization]
                writer.add_tensor(target, quantize(data, kind), raw_dtype=kind)
            else:
                writer.add_tensor(target, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _qwen_fields(writer: GGUFWriter, config: Qwen3_5TextConfig) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    recurrent = [kind == "linear_attention" for kind in config.layer_types]
    if recurrent[0]:
        writer.add_full_attention_interval(recurrent.index(False) + 1)
    else:
        writer.add_array("qwen35.attention.recurrent_layers", recurrent)


def _granite_fields(writer: GGUFWriter, config: GraniteMoeHybridConfig) -> None:
    writer.add_feed_forward_length(config.shared_intermediate_size)
    writer.add_head_count_kv([config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types])
    writer.add_rope_scaling_finetuned(False)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)


def _granite_tensor(name: str, value: torch.Tensor, config: GraniteMoeHybridConfig) -> dict[str, torch.Tensor]:
    """Return llama.cpp's tensors of one of transformers', by name."""
    if not name.startswith("model.layers."):
        return {MODEL_NAMES[name]: value}
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part = f"blk.{layer}."
    if rest == "shared_mlp.input_linear.weight":
        gate, up = value.chunk(2)
        return {f"{part}ffn_gate.weight": gate, f"{part}ffn_up.weight": up}
    if rest in ("mamba.A_log", "mamba.D"):
        vector = -torch.exp(value) if rest == "mamba.A_log" else value
        return {f"{part}ssm_{'a' if rest == 'mamba.A_log' else 'd'}": vector[:, None]}
    if rest == "mamba.dt_bias":
        return {f"{part}ssm_dt.bias": value}
    stem, _, kind = rest.rpartition(".")
    if stem == "mamba.norm":
        value = value[None]
    return {f"{part}{GRANITE_NAMES[stem]}.{kind}": value.squeeze(1) if "conv1d.weight" in name else value}


def _qwen_tensor(name: str, value: torch.Tensor, config: Qwen3_5TextConfig) -> dict[str, torch.Tensor]:
    """Return llama.cpp's name of a tensor, and its values there."""
    if not name.startswith("model.layers."):
        return {MODEL_NAMES[name]: value + 1 if "norm" in name else value}
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    value = _interleaved(rest, value, config)
    if rest == "linear_attn.A_log":
        return {f"blk.{layer}.ssm_a": -torch.exp(value)}
    if rest == "linear_attn.dt_bias":
        return {f"blk.{layer}.ssm_dt.bias": value}
    stem = rest.removesuffix(".weight")
    if "conv1d" in stem:
        value = value.squeeze(1)
    elif stem.endswith("norm") and stem != "linear_attn.norm":
        value = value + 1
    return {f"blk.{layer}.{NAMES[stem]}.weight": value}


def _interleaved(name: str, value: torch.Tensor, config: Qwen3_5TextConfig) -> torch.Tensor:
    """Reorder value heads: transformers has those of a key head side by side, llama.cpp all first ones first."""
    keys, size = config.linear_num_key_heads, config.linear_value_head_dim
    each = config.linear_num_value_heads // keys

    def order(part: torch.Tensor, width: int) -> torch.Tensor:
        return part.reshape(keys, each, width, *part.shape[1:]).transpose(0, 1).reshape(part.shape)

    if "linear_attn" not in name or name.endswith("linear_attn.norm.weight"):
        return value
    if "in_proj_qkv" in name or "conv1d" in name:
        start = 2 * keys * config.linear_key_head_dim
        return torch.cat([value[:start], order(value[start:], size)])
    if "out_proj" in name:
        return order(value.T, size).T
    return order(value, size if "in_proj_z" in name else 1)
