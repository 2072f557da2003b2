"""Random MTP layers in checkpoints and GGUF files, and the float32 computation that defines them, in torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu


@dataclass(frozen=True)
class TinyLayer:
    """The sizes of a layer, and of the model that it drafts for."""

    hidden: int = 64
    vocabulary: int = 160
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    mlp: int = 96
    gated: bool = True
    norms: bool = True
    bias: bool = False
    rotated: int = 8
    theta: float = 5000.0
    epsilon: float = 1e-5
    seed: int = 3

    def tensors(self) -> dict[str, Tensor]:
        """Return its weights, norms as they are computed."""
        random = torch.Generator().manual_seed(self.seed)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=random) * (sizes[-1] ** -0.5 if len(sizes) > 1 else 0.3)

        def norm(size: int) -> Tensor:
            return 1 + 0.2 * torch.randn(size, generator=random)

        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        sizes = {"q": queries * (1 + self.gated), "k": keys, "v": keys}
        return {
            "fc.weight": normal(self.hidden, 2 * self.hidden),
            **{f"{name}.weight": norm(self.hidden) for name in ("embedding", "features", "final", "before", "after")},
            **{f"{each}.weight": normal(size, self.hidden) for each, size in sizes.items()},
            **({f"{each}.bias": normal(size) for each, size in sizes.items()} if self.bias else {}),
            **({f"{each}_norm.weight": norm(self.head_size) for each in "qk"} if self.norms else {}),
            "o.weight": normal(self.hidden, queries),
            **{f"{each}.weight": normal(self.mlp, self.hidden) for each in ("gate", "up")},
            "down.weight": normal(self.hidden, self.mlp),
        }

    def config(self) -> dict[str, Any]:
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "num_hidden_layers": self.layers,
            "rms_norm_eps": self.epsilon,
            "max_position_embeddings": 512,
            "vocab_size": self.vocabulary,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.theta,
                "partial_rotary_factor": self.rotated / self.head_size,
            },
        }


_INSIDE = {
    "before": "input_layernorm",
    "after": "post_attention_layernorm",
    **{each: f"self_attn.{each}_proj" for each in "qkvo"},
    **{f"{each}_norm": f"self_attn.{each}_norm" for each in "qk"},
    **{each: f"mlp.{each}_proj" for each in ("gate", "up", "down")},
}
_QWEN = {"fc": "fc", "embedding": "pre_fc_norm_embedding", "features": "pre_fc_norm_hidden", "final": "norm"}
_GLM = {"fc": "eh_proj", "embedding": "enorm", "features": "hnorm", "final": "shared_head.norm"}
_MIMO = {
    "fc": "input_proj",
    "embedding": "token_layernorm",
    "features": "hidden_layernorm",
    "final": "final_layernorm",
}
IN_GGUF = {
    **{name: f"nextn.{place.replace('.', '_')}" for name, place in _GLM.items()},
    "before": "attn_norm",
    "after": "post_attention_norm",
    **{each: f"attn_{each}" for each in "qkv"},
    "o": "attn_output",
    **{f"{each}_norm": f"attn_{each}_norm" for each in "qk"},
    **{each: f"ffn_{each}" for each in ("gate", "up", "down")},
}


def write_qwen(folder: Path, layer: TinyLayer) -> Path:
    """Write a multimodal checkpoint's form: names at the root, norms minus one."""
    tensors = {}
    for name, values in layer.tensors().items():
        module, _, kind = name.rpartition(".")
        place = f"mtp.{_QWEN[module]}" if module in _QWEN else f"mtp.layers.0.{_INSIDE[module]}"
        tensors[f"{place}.{kind}"] = values - 1 if values.ndim == 1 and kind == "weight" else values
    tensors["model.visual.patch_embed.weight"] = torch.zeros(2, 2)
    return _write(folder, tensors, {"model_type": "qwen3_5", "text_config": layer.config()})


def write_glm(folder: Path, layer: TinyLayer) -> Path:
    prefix, tensors = f"model.layers.{layer.layers}.", {}
    for name, values in layer.tensors().items():
        module, _, kind = name.rpartition(".")
        tensors[f"{prefix}{_GLM.get(module) or _INSIDE[module]}.{kind}"] = values
    tensors[f"{prefix}shared_head.head.weight"] = torch.zeros(layer.vocabulary, layer.hidden)
    tensors[f"model.layers.{layer.layers - 1}.input_layernorm.weight"] = torch.zeros(layer.hidden)
    return _write(folder, tensors, {"model_type": "glm4_moe", **layer.config()})


def write_mimo(folder: Path, layer: TinyLayer) -> Path:
    """Write a form whose first product reads the features before the embedding."""
    tensors = {}
    for name, values in layer.tensors().items():
        module, _, kind = name.rpartition(".")
        values = torch.cat([values[:, layer.hidden :], values[:, : layer.hidden]], 1) if module == "fc" else values
        tensors[f"model.mtp_layers.0.{_MIMO.get(module) or _INSIDE[module]}.{kind}"] = values
    return _write(folder, tensors, {"model_type": "mimo", **layer.config()})


def write_nextn(folder: Path, layer: TinyLayer, *, old: bool = False) -> Path:
    """Write the layer as llama.cpp's files of models have it. old: as an earlier Ollama did."""
    folder.mkdir(parents=True)
    writer = GGUFWriter(folder / "model.gguf", "qwen35")
    writer.add_block_count(layer.layers + (not old))
    if not old:
        writer.add_nextn_predict_layers(1)
    writer.add_context_length(512)
    writer.add_embedding_length(layer.hidden)
    writer.add_feed_forward_length(layer.mlp)
    writer.add_head_count(layer.heads)
    writer.add_head_count_kv(layer.kv_heads)
    writer.add_key_length(layer.head_size)
    writer.add_rope_dimension_count(layer.rotated)
    writer.add_rope_freq_base(layer.theta)
    writer.add_layer_norm_rms_eps(layer.epsilon)
    writer.add_vocab_size(layer.vocabulary)
    for name, values in layer.tensors().items():
        module, _, kind = name.rpartition(".")
        place = f"blk.{layer.layers}.{IN_GGUF[module]}"
        if old:
            values = values - 1 if values.ndim == 1 else values
            place = f"mtp.{_QWEN[module]}" if module in _QWEN else f"mtp.layers.0.{IN_GGUF[module]}"
        writer.add_tensor(f"{place}.{kind}", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def write_old(folder: Path, layer: TinyLayer) -> Path:
    return write_nextn(folder, layer, old=True)


def _write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


_PLAIN = TinyLayer(gated=False, norms=False, rotated=16)
LAYOUTS: dict[str, tuple[Callable[[Path, TinyLayer], Path], TinyLayer]] = {
    "Qwen3.5": (write_qwen, TinyLayer()),
    "GLM": (write_glm, TinyLayer(gated=False, rotated=16)),
    "MiMo": (write_mimo, TinyLayer(gated=False, norms=False, bias=True, rotated=32)),
    "GGUF": (write_nextn, TinyLayer()),
    "GGUF without gates": (write_nextn, _PLAIN),
    "an older Ollama's": (write_old, TinyLayer()),
}


@dataclass
class Reference:
    """An MTP layer in float32 (2412.19437, with the residual stream of Qwen3.5), and its keys and values so far."""

    layer: TinyLayer
    table: Tensor
    """The target's embedding, [ids, hidden]."""
    output: Tensor
    """The target's last matrix, [ids, hidden]."""
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = self.layer.tensors()

    def read(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits and outputs of rows that read states [rows, hidden], each with its next token."""
        rows = [self._row(state, token) for state, token in zip(states, tokens, strict=True)]
        return torch.stack([logits for logits, _ in rows]), torch.stack([after for _, after in rows])

    def crop(self, length: int) -> None:
        del self.keys[length:], self.values[length:]

    def _row(self, state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        w = self.weights
        both = [self._norm(self.table[token], "embedding"), self._norm(state, "features")]
        x = w["fc.weight"] @ torch.cat(both)
        x = x + self._attention(self._norm(x, "before"))
        y = self._norm(x, "after")
        x = x + w["down.weight"] @ (silu(w["gate.weight"] @ y) * (w["up.weight"] @ y))
        z = self._norm(x, "final")
        return self.output @ z, z

    def _attention(self, x: Tensor) -> Tensor:
        layer, place = self.layer, len(self.keys)
        query, key, value = (self._product(x, each).reshape(n, -1) for each, n in self._heads())
        gate = None
        if layer.gated:
            query, gate = query.chunk(2, dim=-1)
        if layer.norms:
            query, key = self._norm(query, "q_norm"), self._norm(key, "k_norm")
        self.keys.append(self._rotated(key, place))
        self.values.append(value)
        shared = layer.heads // layer.kv_heads
        keys, values = (torch.stack(each, 1).repeat_interleave(shared, 0) for each in (self.keys, self.values))
        scores = (self._rotated(query, place)[:, None] * keys).sum(-1) * layer.head_size**-0.5
        found = (scores.softmax(-1)[..., None] * values).sum(1)
        found = found if gate is None else found * gate.sigmoid()
        return self.weights["o.weight"] @ found.reshape(-1)

    def _heads(self) -> list[tuple[str, int]]:
        return [("q", self.layer.heads), ("k", self.layer.kv_heads), ("v", self.layer.kv_heads)]

    def _product(self, x: Tensor, name: str) -> Tensor:
        y = self.weights[f"{name}.weight"] @ x
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _rotated(self, x: Tensor, place: int) -> Tensor:
        size = self.layer.rotated
        angles = place * self.layer.theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        cos, sin = angles.cos().float(), angles.sin().float()
        first, second, rest = x[:, : size // 2], x[:, size // 2 : size], x[:, size:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.layer.epsilon).rsqrt() * self.weights[f"{name}.weight"]


def random_states(count: int, hidden: int) -> tuple[Tensor, list[int]]:
    """Return states of the target, and as many tokens."""
    random = torch.Generator().manual_seed(11)
    states = torch.randn(count, hidden, generator=random)
    return states, torch.randint(100, (count,), generator=random).tolist()


def largest(found: np.ndarray[Any, Any], wanted: Tensor) -> float:
    return float(np.abs(found - wanted.numpy()).max())
