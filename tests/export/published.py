"""Models as their makers publish them, in all but depth and weights: `write_published` makes one of random weights.

Each row is what the named repository's config.json and generation_config.json say (as of 2025), with fewer layers. Made
up are: the texts of tokens that are no special ones, and the factors of long rope (of the published count and order).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

__all__ = ["PUBLISHED", "Published", "write_published"]


@dataclass(frozen=True)
class Published:
    """A model's configuration, and what its tokenizer is like. pieces: SentencePiece's kind; else bytes as GPT-2's."""

    source: str
    config: Mapping[str, Any]
    ends: int | Sequence[int]
    tokens: int
    """Ids of the tokenizer; the model's rows may be more."""
    specials: Mapping[int, str]
    pieces: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What generation_config.json says besides."""


_LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LONG_ROPE = {
    "long_factor": [1.0 + step for step in range(48)],
    "short_factor": [1.0 + step / 50 for step in range(48)],
    "type": "longrope",
}
_QWEN_SPECIALS = {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"}

PUBLISHED: Mapping[str, Published] = {
    "llama-3.2-1b": Published(
        source="meta-llama/Llama-3.2-1B-Instruct",
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": _LLAMA3_ROPE,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009],
        },
        ends=[128001, 128008, 128009],
        tokens=128256,
        specials={
            128000: "<|begin_of_text|>",
            128001: "<|end_of_text|>",
            128006: "<|start_header_id|>",
            128007: "<|end_header_id|>",
            128008: "<|eom_id|>",
            128009: "<|eot_id|>",
        },
        defaults={"bos_token_id": 128000, "temperature": 0.6, "top_p": 0.9},
    ),
    "qwen3-0.6b": Published(
        source="Qwen/Qwen3-0.6B",
        config={
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 2,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "rope_theta": 1000000,
            "rope_scaling": None,
            "rms_norm_eps": 1e-6,
            "sliding_window": None,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        },
        ends=[151645, 151643],
        tokens=151669,
        specials=_QWEN_SPECIALS,
        defaults={"pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ),
    "qwen2.5-0.5b": Published(
        source="Qwen/Qwen2.5-0.5B-Instruct",
        config={
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 2,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-6,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "max_window_layers": 21,
            "tie_word_embeddings": True,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        },
        ends=[151645, 151643],
        tokens=151665,
        specials=_QWEN_SPECIALS,
        defaults={"pad_token_id": 151643, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ),
    "gemma-3-1b": Published(
        source="google/gemma-3-1b-it",
        config={
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],  # as published: every sixth is full
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 262144,
            "max_position_embeddings": 32768,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "sliding_window": 512,
            "rms_norm_eps": 1e-6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "bos_token_id": 2,
            "eos_token_id": [1, 106],
            "pad_token_id": 0,
        },
        ends=[1, 106],
        tokens=262144,
        specials={0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 105: "<start_of_turn>", 106: "<end_of_turn>"},
        pieces=True,
        defaults={"bos_token_id": 2, "pad_token_id": 0, "top_k": 64, "top_p": 0.95},
    ),
    "phi-3.5-mini": Published(
        source="microsoft/Phi-3.5-mini-instruct",
        config={
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "rope_scaling": _LONG_ROPE,
            "rms_norm_eps": 1e-5,
            "sliding_window": 262144,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
        },
        ends=[32007, 32001, 32000],
        tokens=32011,
        specials={
            0: "<unk>",
            1: "<s>",
            2: "</s>",
            32000: "<|endoftext|>",
            32001: "<|assistant|>",
            32006: "<|system|>",
            32007: "<|end|>",
            32010: "<|user|>",
        },
        pieces=True,
        defaults={"bos_token_id": 1, "pad_token_id": 32000},
    ),
    "phi-4-mini": Published(
        source="microsoft/Phi-4-mini-instruct",
        config={
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 2,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.75,
            "vocab_size": 200064,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "rope_scaling": _LONG_ROPE,
            "rms_norm_eps": 1e-5,
            "sliding_window": 262144,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 199999,
            "eos_token_id": 199999,
            "pad_token_id": 199999,
        },
        ends=[200020, 199999],
        tokens=200029,
        specials={
            199999: "<|endoftext|>",
            200019: "<|assistant|>",
            200020: "<|end|>",
            200021: "<|user|>",
            200022: "<|system|>",
        },
        defaults={"bos_token_id": 199999, "pad_token_id": 199999},
    ),
    "smollm2-135m": Published(
        source="HuggingFaceTB/SmolLM2-135M-Instruct",
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 2,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "rope_theta": 100000,
            "rope_scaling": None,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        },
        ends=2,
        tokens=49152,
        specials={0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"},
        defaults={"bos_token_id": 1, "pad_token_id": 2},
    ),
    "smollm3-3b": Published(
        source="HuggingFaceTB/SmolLM3-3B",
        config={
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 1, 1, 0],
            "no_rope_layer_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 128256,
            "max_position_embeddings": 65536,
            "rope_theta": 5000000.0,
            "rope_scaling": None,
            "rms_norm_eps": 1e-6,
            "sliding_window": None,
            "use_sliding_window": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": 128012,
            "pad_token_id": 128004,
        },
        ends=128012,
        tokens=128256,
        specials={
            128000: "<|begin_of_text|>",
            128001: "<|end_of_text|>",
            128004: "<|finetune_right_pad_id|>",
            128011: "<|im_start|>",
            128012: "<|im_end|>",
        },
        defaults={"bos_token_id": 128000, "pad_token_id": 128004, "temperature": 0.6, "top_p": 0.95},
    ),
    "granite-3.1-2b": Published(
        source="ibm-granite/granite-3.1-2b-instruct",
        config={
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 49155,
            "max_position_embeddings": 131072,
            "rope_theta": 5000000.0,
            "rope_scaling": None,
            "rms_norm_eps": 1e-5,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.015625,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
        },
        ends=0,
        tokens=49155,
        specials={
            0: "<|end_of_text|>",
            49152: "<|start_of_role|>",
            49153: "<|end_of_role|>",
            49154: "<|tool_call|>",
        },
        defaults={"bos_token_id": 0, "pad_token_id": 0},
    ),
}


def write_published(folder: Path, model: Published) -> Path:
    """Write a Hugging Face folder with bfloat16 weights that give every layer a say in the logits."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**model.config, "torch_dtype": "bfloat16"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": model.ends, **model.defaults}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    (folder / "README.md").write_text("---\nlicense: other\n---\n")
    _tokenizer(model).save(str(folder / "tokenizer.json"))
    usual = model.config["eos_token_id"]
    first = usual[0] if isinstance(usual, list) else usual
    bos = model.specials[model.config["bos_token_id"]]
    named = {"bos_token": bos, "eos_token": model.specials[first]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    save_file(_weights(folder), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """Draw every parameter.

    Matrices keep the size of what they read, and layers outweigh the embedding: a tied head would repeat every token.
    """
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(0)
    gemma = "Gemma" in type(network).__name__  # scales its embedding, and its norms add 1 themselves
    scale = math.sqrt(network.config.hidden_size) if gemma else getattr(network.config, "embedding_multiplier", 1)
    found = {}
    for name, parameter in network.named_parameters():
        deviation = 0.02 / scale if "embed" in name else 1.5 / math.sqrt(parameter.shape[-1])
        if parameter.dim() == 1:
            deviation = 0.1
        values = torch.empty(parameter.shape, dtype=torch.bfloat16).normal_(0, deviation, generator=generator)
        found[name] = values + 1 if "norm" in name and not gemma else values
    return found


def _tokenizer(model: Published) -> tokenizers.Tokenizer:
    """Put the special tokens where they are published, and the alphabet and made-up tokens around them."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581"] if model.pieces else [*_alphabet(), "he"]
    spare = iter(alphabet)
    tokens = [
        model.specials.get(id) or next(spare, None) or f"{chr(0x2581) if model.pieces else ''}w{id}"
        for id in range(model.tokens)
    ]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if model.pieces:
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        inner.normalizer = normalizers.Replace(" ", "\u2581")
        inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("h", "e")]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(model.specials.values()))
    return inner


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())
