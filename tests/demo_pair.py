"""Write the bundled pack's pair as float32 Hugging Face folders, with its 8-bit weights dequantized; no download."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest

BLOCK = 32
PLACES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Hugging Face module names by llama.cpp's names, which the pack's plan uses."""


def write_demo_pair(folder: Path) -> None:
    """Write `target` and `draft`: config, safetensors, tokenizer, chat template, generation defaults."""
    manifest = Manifest.load(BUNDLED_PACK)
    for role, entry in manifest.models.items():
        _write_model(folder / role, BUNDLED_PACK / entry.gguf_plan, BUNDLED_PACK / entry.weights)
        shutil.copy(BUNDLED_PACK / manifest.tokenizer, folder / role / "tokenizer.json")
        shutil.copy(BUNDLED_PACK / "chat_template.jinja", folder / role / "chat_template.jinja")
        names = {"bos_token": manifest.generation.bos_token, "eos_token": manifest.generation.eos_token}
        _write_json(folder / role / "tokenizer_config.json", names)
        ends = list(manifest.generation.end_token_ids)
        generation = {"eos_token_id": ends, "pad_token_id": 2, "max_new_tokens": manifest.generation.max_tokens}
        _write_json(folder / role / "generation_config.json", generation)


def _write_model(folder: Path, plan_file: Path, weights: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    content = weights.read_bytes()
    tensors = {_name(name): _values(tensor, content) for name, tensor in plan["tensors"].items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config({name: key and key["value"] for name, key in plan["keys"].items()}))


def _name(name: str) -> str:
    """Return the checkpoint's name of a weight such as `blk.3.attn_q.weight`."""
    *layer, module, _ = name.split(".")
    return f"model.layers.{layer[1]}.{PLACES[module]}.weight" if layer else f"{PLACES[module]}.weight"


def _values(tensor: dict[str, Any], content: bytes) -> npt.NDArray[np.float32]:
    """Return a tensor of the plan, dequantized. Rows are stored in the checkpoint's order, before any permutation."""
    shape = tensor["shape"]
    count = int(np.prod(shape))
    if tensor["type"] == "F32":
        return np.frombuffer(content, np.float32, count, tensor["offset"]).reshape(shape)
    assert tensor["type"] == "Q8_0"
    (packed,), (scales,) = tensor["packed"], tensor["scales"]
    levels = np.frombuffer(content, np.uint8, count, packed).astype(np.float32).reshape(-1, BLOCK) - 128
    return (levels * np.frombuffer(content, np.float32, count // BLOCK, scales)[:, None]).reshape(shape)


def _config(keys: dict[str, object]) -> dict[str, object]:
    def of(name: str) -> object:
        return keys[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": keys["tokenizer.ggml.bos_token_id"],
        "eos_token_id": keys["tokenizer.ggml.eos_token_id"],
        "pad_token_id": keys["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
        "head_dim": of("attention.key_length"),
        "hidden_act": "silu",
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "max_position_embeddings": of("context_length"),
        "num_attention_heads": of("attention.head_count"),
        "num_hidden_layers": of("block_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": of("rope.freq_base"), "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": of("vocab_size"),
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
