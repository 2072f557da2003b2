"""Random drafting heads in every publisher's layout, and the float32 computation that defines them, in torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from edgedecode.pack.manifest import ModelEntry

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class TinyHead:
    """The sizes and flags of a random head."""

    hidden: int = 64
    target_hidden: int = 64
    vocabulary: int = 160
    rows: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    mlp: int = 96
    layers: tuple[int, ...] = (2, 4, 5)
    """Whose inputs it reads."""
    input_norm: bool = False
    fc_norm: bool = False
    qk_norm: bool = False
    bias: bool = False
    llama3: bool = False
    rotated: int = 32
    """Values of each head that RoPE rotates."""
    window: int = 0
    norm_before_residual: bool = False
    norm_output: bool = False
    seed: int = 3
    epsilon: float = 1e-5
    theta: float = 5000.0

    @classmethod
    def of(cls, target: ModelEntry, *, rows: int) -> "TinyHead":
        """Return a head for the bundled target."""
        hidden = target.hidden_size
        return cls(hidden, hidden, target.rows, rows, heads=4, head_size=64, rotated=64, mlp=256, layers=(2, 5, 7))

    def tensors(self) -> dict[str, Tensor]:
        """Return its weights by the flat layout's names, those of the layer without prefix."""
        random = torch.Generator().manual_seed(self.seed)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=random) * (sizes[-1] ** -0.5 if len(sizes) > 1 else 0.3)

        def norm(size: int) -> Tensor:
            return 1 + 0.2 * torch.randn(size, generator=random)

        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        found = {
            "fc.weight": normal(self.hidden, 3 * self.target_hidden),
            "norm.weight": norm(self.hidden),
            "lm_head.weight": 4 * normal(self.rows, self.hidden),
            ".input_layernorm.weight": norm(self.hidden),
            ".hidden_norm.weight": norm(self.hidden),
            ".post_attention_layernorm.weight": norm(self.hidden),
            ".self_attn.q_proj.weight": normal(queries, 2 * self.hidden),
            ".self_attn.k_proj.weight": normal(keys, 2 * self.hidden),
            ".self_attn.v_proj.weight": normal(keys, 2 * self.hidden),
            ".self_attn.o_proj.weight": normal(self.hidden, queries),
            ".mlp.gate_proj.weight": normal(self.mlp, self.hidden),
            ".mlp.up_proj.weight": normal(self.mlp, self.hidden),
            ".mlp.down_proj.weight": normal(self.hidden, self.mlp),
        }
        if self.input_norm:
            found["input_norm.weight"] = norm(3 * self.target_hidden)
        if self.fc_norm:
            found |= {f"fc_norm.{index}.weight": norm(self.target_hidden) for index in range(3)}
        if self.qk_norm:
            found |= {f".self_attn.{each}_norm.weight": norm(self.head_size) for each in "qk"}
        if self.bias:
            sizes = {"q": queries, "k": keys, "v": keys, "o": self.hidden}
            found |= {f".self_attn.{each}_proj.bias": normal(size) for each, size in sizes.items()}
        return found

    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return each row's token id."""
        return np.sort(np.random.default_rng(self.seed).permutation(self.vocabulary)[: self.rows])

    def config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        window = {"sliding_window": self.window, "layer_types": ["sliding_attention"]} if self.window else {}
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "num_hidden_layers": 1,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "max_position_embeddings": 512,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "model_type": "llama",
            "partial_rotary_factor": self.rotated / self.head_size,
            **({"rope_scaling": LLAMA3} if self.llama3 else {}),
            **window,
        }

    def flags(self) -> dict[str, Any]:
        return {
            "draft_vocab_size": self.rows,
            "target_hidden_size": self.target_hidden,
            "norm_before_residual": self.norm_before_residual,
            "norm_output": self.norm_output,
            "norm_before_fc": self.input_norm,
            "fc_norm": self.fc_norm,
        }


def maps(head: TinyHead) -> dict[str, Tensor]:
    """Return d2t and t2d."""
    ids, mask = head.ids(), np.zeros(head.vocabulary, np.bool_)
    mask[ids] = True
    return {"d2t": torch.from_numpy(ids - np.arange(head.rows)), "t2d": torch.from_numpy(mask)}


def write_flat(folder: Path, head: TinyHead, *, pickled: bool = False, **config: object) -> Path:
    """Write SafeAILab's layout."""
    tensors = {f"midlayer{name}" if name[0] == "." else name: each for name, each in head.tensors().items()}
    outputs = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in head.layers]}
    value = {**head.config(), **head.flags(), "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": outputs}
    return _write(folder, {**tensors, **maps(head)}, {**value, **config}, pickled=pickled)


def write_speculators(folder: Path, head: TinyHead, **config: object) -> Path:
    tensors = {f"layers.0{name}" if name[0] == "." else name: each for name, each in head.tensors().items()}
    unused = {"verifier_norm.weight": torch.ones(head.hidden)}
    value = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": head.config(),
        "eagle_aux_hidden_state_layer_ids": list(head.layers),
        **head.flags(),
    }
    return _write(folder, {**tensors, **maps(head), **unused}, {**value, **config})


def write_nemo(folder: Path, head: TinyHead, **config: object) -> Path:
    tensors = {
        f"model.layers.0{name}" if name[0] == "." else f"model.{name}": each for name, each in head.tensors().items()
    }
    tensors["lm_head.weight"] = tensors.pop("model.lm_head.weight")
    outputs = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in head.layers]}
    value = {**head.config(), **head.flags(), "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": outputs}
    return _write(folder, {**tensors, "d2t": maps(head)["d2t"]}, {**value, **config})


def _write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], *, pickled: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


IN_GGUF = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "input_norm": "enc.output_norm",
    "fc_norm.0": "fc_norm.0",
    "fc_norm.1": "fc_norm.1",
    "fc_norm.2": "fc_norm.2",
    ".input_layernorm": "blk.0.attn_norm",
    ".hidden_norm": "blk.0.attn_norm_2",
    ".post_attention_layernorm": "blk.0.ffn_norm",
    ".self_attn.q_proj": "blk.0.attn_q",
    ".self_attn.k_proj": "blk.0.attn_k",
    ".self_attn.v_proj": "blk.0.attn_v",
    ".self_attn.o_proj": "blk.0.attn_output",
    ".self_attn.q_norm": "blk.0.attn_q_norm",
    ".self_attn.k_norm": "blk.0.attn_k_norm",
    ".mlp.gate_proj": "blk.0.ffn_gate",
    ".mlp.up_proj": "blk.0.ffn_up",
    ".mlp.down_proj": "blk.0.ffn_down",
}


def write_gguf(folder: Path, head: TinyHead, *, name: str = "head.gguf", output: bool = True) -> Path:
    """Write llama.cpp's layout with its own library. output: whether it has rows of logits of its own."""
    folder.mkdir(parents=True)
    writer = GGUFWriter(folder / name, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(head.hidden)
    writer.add_feed_forward_length(head.mlp)
    writer.add_head_count(head.heads)
    writer.add_head_count_kv(head.kv_heads)
    writer.add_key_length(head.head_size)
    writer.add_value_length(head.head_size)
    writer.add_rope_dimension_count(head.rotated)
    writer.add_rope_freq_base(head.theta)
    writer.add_layer_norm_rms_eps(head.epsilon)
    writer.add_vocab_size(head.vocabulary)
    if head.window:
        writer.add_sliding_window(head.window)
    writer.add_array("eagle3.target_layers", list(head.layers))
    writer.add_uint32("eagle3.target_hidden_size", head.target_hidden)
    writer.add_bool("eagle3.norm_before_residual", head.norm_before_residual)
    writer.add_bool("eagle3.norm_output", head.norm_output)
    for full, values in head.tensors().items():
        module, _, kind = full.rpartition(".")
        if module == "lm_head" and not output:
            continue
        array = values.numpy()
        if module[-6:] in ("q_proj", "k_proj", "q_norm", "k_norm"):
            size, half = head.head_size, head.rotated // 2
            order = [*(each // 2 + each % 2 * half for each in range(head.rotated)), *range(head.rotated, size)]
            array = array.reshape(-1, size, *array.shape[1:])[:, order].reshape(array.shape)
        writer.add_tensor(f"{IN_GGUF[module]}.{kind}", array)
    if head.llama3:
        writer.add_tensor("rope_freqs.weight", divisors(head).numpy().astype(np.float32))
    writer.add_tensor("d2t", head.ids().astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / name


LAYOUTS: dict[str, Callable[..., Path]] = {
    "flat": write_flat,
    "speculators": write_speculators,
    "nemo": write_nemo,
    "gguf": write_gguf,
}
VARIANTS = {
    "plain": TinyHead(),
    "input norm": TinyHead(input_norm=True),
    "fc norms": TinyHead(fc_norm=True),
    "q/k norms": TinyHead(qk_norm=True),
    "attention bias": TinyHead(bias=True),
    "llama3 rope": TinyHead(llama3=True),
    "half rotated": TinyHead(rotated=16, llama3=True, qk_norm=True),
    "window": TinyHead(window=5),
    "norm before residual": TinyHead(norm_before_residual=True),
    "norm output": TinyHead(norm_output=True),
    "wider target": TinyHead(target_hidden=96),
    "everything": TinyHead(
        input_norm=True, qk_norm=True, bias=True, llama3=True, window=5, norm_before_residual=True, norm_output=True
    ),
}


def divisors(head: TinyHead) -> Tensor:
    """Return what Llama 3's scaling divides the frequencies by, from its three cases."""
    found = []
    for index in range(head.rotated // 2):
        wave = 2 * torch.pi * head.theta ** (2 * index / head.rotated)
        original, factor = LLAMA3["original_max_position_embeddings"], LLAMA3["factor"]
        low, high = original / LLAMA3["low_freq_factor"], original / LLAMA3["high_freq_factor"]
        if wave < high:
            found.append(1.0)
        elif wave > low:
            found.append(factor)
        else:
            share = (original / wave - LLAMA3["low_freq_factor"]) / (
                LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"]
            )
            found.append(1 / ((1 - share) / factor + share))
    return torch.tensor(found, dtype=torch.float64)


@dataclass
class Reference:
    """The computation of EAGLE-3's head in float32, with the keys and values of every row so far."""

    head: TinyHead
    table: Tensor
    """The target's embedding, [ids, hidden]."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = self.weights or self.head.tensors()

    def read(self, features: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits and outputs for rows of features [rows, 3 · target hidden], each with its next token."""
        head, w = self.head, self.weights
        if head.input_norm:
            features = self._norm(features, w["input_norm.weight"])
        if head.fc_norm:
            parts = features.chunk(3, dim=-1)
            normed = [self._norm(part, w[f"fc_norm.{index}.weight"]) for index, part in enumerate(parts)]
            features = torch.cat(normed, dim=-1)
        return self.step(features @ w["fc.weight"].T, tokens)

    def step(self, g: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the same for rows of g, [rows, hidden]."""
        rows = [self._row(g[index], token) for index, token in enumerate(tokens)]
        return torch.stack([logits for logits, _ in rows]), torch.stack([after for _, after in rows])

    def crop(self, length: int) -> None:
        del self.keys[length:], self.values[length:]

    def _row(self, g: Tensor, token: int) -> tuple[Tensor, Tensor]:
        head, w = self.head, self.weights
        normed = self._norm(g, w[".hidden_norm.weight"])
        x = torch.cat([self._norm(self.table[token], w[".input_layernorm.weight"]), normed])
        x = (normed if head.norm_before_residual else g) + self._attention(x)
        y = self._norm(x, w[".post_attention_layernorm.weight"])
        gate, up = w[".mlp.gate_proj.weight"] @ y, w[".mlp.up_proj.weight"] @ y
        y = x + w[".mlp.down_proj.weight"] @ (silu(gate) * up)
        final = self._norm(y, w["norm.weight"])
        return w["lm_head.weight"] @ final, final if head.norm_output else y

    def _attention(self, x: Tensor) -> Tensor:
        head, place = self.head, len(self.keys)
        q, k, v = (self._heads(x, each) for each in "qkv")
        self.keys.append(self._rotated(k, place))
        self.values.append(v)
        first = max(0, place + 1 - head.window) if head.window else 0
        keys, values = torch.stack(self.keys[first:], 1), torch.stack(self.values[first:], 1)
        shared = head.heads // head.kv_heads
        keys, values = keys.repeat_interleave(shared, 0), values.repeat_interleave(shared, 0)
        scores = (self._rotated(q, place)[:, None] * keys).sum(-1) * head.head_size**-0.5
        found = (scores.softmax(-1)[..., None] * values).sum(1).reshape(-1)
        return self._product(found, "o")

    def _heads(self, x: Tensor, name: str) -> Tensor:
        y = self._product(x, name).reshape(-1, self.head.head_size)
        norm = self.weights.get(f".self_attn.{name}_norm.weight")
        return y if norm is None else self._norm(y, norm)

    def _product(self, x: Tensor, name: str) -> Tensor:
        y = self.weights[f".self_attn.{name}_proj.weight"] @ x
        bias = self.weights.get(f".self_attn.{name}_proj.bias")
        return y if bias is None else y + bias

    def _rotated(self, x: Tensor, place: int) -> Tensor:
        size = self.head.rotated
        frequencies = self.head.theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        if self.head.llama3:
            frequencies = frequencies / divisors(self.head)
        angles = (place * frequencies).float()
        low, high, rest = x.split([size // 2, size // 2, x.shape[-1] - size], dim=-1)
        turned = [low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()]
        return torch.cat([*turned, rest], dim=-1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.head.epsilon) * weight


def full(head: TinyHead) -> TinyHead:
    """Return the head with a row for every id of the target."""
    return replace(head, rows=head.vocabulary)
