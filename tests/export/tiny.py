"""Random models with real configuration classes, small enough to export in a fraction of a second."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.small_tokenizers import byte_level

_CONFIGS = {
    "ernie4_5": Ernie4_5Config,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "granite": GraniteConfig,
    "llama": LlamaConfig,
    "ministral3": Ministral3Config,
    "mistral": MistralConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
}


@dataclass(frozen=True)
class TinyModel:
    """The shape of a random model. It has more rows than the tokenizer has ids, like a padded vocabulary."""

    family: str = "llama"
    hidden: int = 64
    mlp: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    rows: int = 352
    context: int = 256
    tied: bool = False
    dtype: str = "float32"
    seed: int = 0
    shard: str = "1GB"
    more: Mapping[str, object] = field(default_factory=dict)


def write_model(folder: Path, tiny: TinyModel) -> Path:
    """Write a Hugging Face folder: config, safetensors, tokenizer, chat template, generation defaults."""
    return write_network(folder, random_network(tiny), shard=tiny.shard)


def write_network(folder: Path, network: PreTrainedModel, *, shard: str = "1GB") -> Path:
    """Write a Hugging Face folder of a network."""
    network.save_pretrained(folder, max_shard_size=shard)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5], "max_new_tokens": 77}))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A random model\n")
    (folder / "LICENSE").write_text("MIT\n")
    return folder


def random_network(tiny: TinyModel) -> PreTrainedModel:
    """Create the model with weights large enough for clearly different logits; biases and norms are random too."""
    config = _CONFIGS[tiny.family](
        hidden_size=tiny.hidden,
        intermediate_size=tiny.mlp,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=tiny.head_size,
        vocab_size=tiny.rows,
        max_position_embeddings=tiny.context,
        tie_word_embeddings=tiny.tied,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=3,
        **tiny.more,
    )
    torch.manual_seed(tiny.seed)
    network = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    return network.to(getattr(torch, tiny.dtype))


MASSIVE = ("attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj", "head")
"""The products whose inputs `write_massive` can enlarge."""


def write_massive(folder: Path, massive: Collection[str] = MASSIVE) -> Path:
    """Write a model with a clear top token; one of 32 inputs of each product in `massive` is 100 times the others.

    `massive` does not change the function of float activations at any weight width: those inputs have zero weights.
    """
    tiny = TinyModel(family="qwen3", hidden=128, mlp=256, heads=4, kv_heads=2, head_size=32, context=512, seed=3)
    write_model(folder, tiny)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    body = network.model
    with torch.no_grad():
        table = body.embed_tokens.weight
        table.copy_(torch.randn_like(table))
        network.lm_head.weight[torch.randperm(len(table))] = 0.1 * table + 0.06 * torch.randn_like(table)
        sources = [("head", body.norm, [network.lm_head])]
        for layer in body.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for added in (attention.o_proj, mlp.down_proj):
                added.weight *= 0.3
            sources += [
                ("attn.qkv_proj", layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]),
                ("attn.o_proj", attention.v_proj, [attention.o_proj]),
                ("mlp.gate_up_proj", layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj]),
                ("mlp.down_proj", mlp.up_proj, [mlp.down_proj]),
            ]
        for name, source, readers in sources:
            for reader in readers:
                reader.weight[:, 5::32] = 0
            if name in massive:
                source.weight[5::32] *= 100
    network.save_pretrained(folder)
    return folder
