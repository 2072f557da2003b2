"""Random block drafters as publishers write them, and the float32 computation that defines them, in torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu


@dataclass(frozen=True)
class TinyBlock:
    """The sizes and flags of a random block drafter. rank 0: DFlash; else DSpark."""

    vocabulary: int
    outputs: tuple[int, ...] = (0, 2, 3)
    """The target's layers whose outputs it reads."""
    target_layers: int = 5
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    mlp: int = 96
    block: int = 5
    mask: int = 7
    rank: int = 32
    neox: bool = False
    epsilon: float = 1e-5
    theta: float = 5000.0

    @property
    def unused(self) -> int:
        """The first rows of a block, which propose nothing."""
        return 0 if self.rank else 1

    def tensors(self) -> dict[str, Tensor]:
        """Return its weights under the published names."""
        random = torch.Generator().manual_seed(9)
        hidden, queries, keys = self.hidden, self.heads * self.head_size, self.kv_heads * self.head_size
        wide = len(self.outputs) * hidden
        sizes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
        found: dict[str, tuple[int, ...]] = {"fc": (hidden, wide), "hidden_norm": (hidden,), "norm": (hidden,)}
        for index in range(self.layers):
            part = f"layers.{index}."
            found |= {f"{part}self_attn.{name}_proj": size for name, size in sizes.items()}
            found |= {f"{part}self_attn.{name}_norm": (self.head_size,) for name in "qk"}
            found |= {f"{part}mlp.{name}_proj": (self.mlp, hidden) for name in ("gate", "up")}
            found |= {f"{part}mlp.down_proj": (hidden, self.mlp)}
            found |= {f"{part}{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
        if self.rank:
            found |= {f"markov_head.markov_w{each}": (self.vocabulary, self.rank) for each in (1, 2)}
            found |= {"confidence_head.proj": (1, hidden + self.rank)}
        return {
            f"{name}.weight": 1 + 0.2 * torch.randn(size, generator=random)
            if len(size) == 1
            else torch.randn(size, generator=random) * size[-1] ** -0.5
            for name, size in found.items()
        }

    def config(self) -> dict[str, Any]:
        """Return its configuration, as LFM2.5's are written."""
        return {
            "architectures": ["Lfm2DSparkDraftModel" if self.rank else "DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.mlp,
            "hidden_act": "silu",
            "rms_norm_eps": self.epsilon,
            "vocab_size": self.vocabulary,
            "rope_theta": self.theta,
            "max_position_embeddings": 512,
            "layer_types": ["full_attention"] * self.layers,
            "block_size": self.block + self.unused,
            "dflash_config": {
                "mask_token_id": self.mask,
                "target_layer_ids": list(self.outputs),
                "num_target_layers": self.target_layers,
            },
            "rope_is_neox_style": self.neox,
            **(
                {"markov_rank": self.rank, "markov_head_type": "vanilla", "enable_confidence_head": True}
                if self.rank
                else {}
            ),
        }

    def write(self, folder: Path, *, more: dict[str, Tensor | None] | None = None, **config: object) -> Path:
        """Write its folder. more: tensors that replace its own; None: there is none. config: fields likewise."""
        folder.mkdir(parents=True)
        value = {name: each for name, each in (self.config() | config).items() if each is not None}
        (folder / "config.json").write_text(json.dumps(value), encoding="utf-8")
        tensors = {name: each for name, each in (self.tensors() | (more or {})).items() if each is not None}
        save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
        return folder


def draft(
    block: TinyBlock, *, features: Tensor, token: int, table: Tensor, output: Tensor, count: int
) -> tuple[Tensor, Tensor, list[int]]:
    """Return the logits without and with the chain, and the greedy tokens after `token`.

    table, output: the target's, [ids, hidden].
    """
    w, group = block.tensors(), block.heads // block.kv_heads
    context = _norm(block, features @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = table[[token, *[block.mask] * (count - 1 + block.unused)]]
    for index in range(block.layers):
        own = {name.removeprefix(f"layers.{index}."): value for name, value in w.items()}
        normed = _norm(block, x, own["input_layernorm.weight"])
        every = torch.cat([context, normed])
        q, k, v = (
            (rows @ own[f"self_attn.{name}_proj.weight"].T).reshape(len(rows), -1, block.head_size)
            for rows, name in ((normed, "q"), (every, "k"), (every, "v"))
        )
        q = _rotated(block, _norm(block, q, own["self_attn.q_norm.weight"]), first=len(context))
        k = _rotated(block, _norm(block, k, own["self_attn.k_norm.weight"]), first=0).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * block.head_size**-0.5
        y = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(group, 1)).reshape(len(x), -1)
        x = x + y @ own["self_attn.o_proj.weight"].T
        y = _norm(block, x, own["post_attention_layernorm.weight"])
        gate, up = y @ own["mlp.gate_proj.weight"].T, y @ own["mlp.up_proj.weight"].T
        x = x + (silu(gate) * up) @ own["mlp.down_proj.weight"].T
    base, tokens = _norm(block, x, w["norm.weight"])[block.unused :] @ output.T, [token]
    rows = base.clone()
    for row in rows:
        if block.rank:
            row += w["markov_head.markov_w2.weight"] @ w["markov_head.markov_w1.weight"][tokens[-1]]
        tokens.append(int(row.argmax()))
    return base, rows, tokens[1:]


def _norm(block: TinyBlock, x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + block.epsilon) * weight


def _rotated(block: TinyBlock, x: Tensor, *, first: int) -> Tensor:
    half = block.head_size // 2
    frequencies = block.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(first, first + len(x))[:, None] * frequencies).float()[:, None]
    a, b = x.chunk(2, -1) if block.neox else (x[..., ::2], x[..., 1::2])
    turned = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    return torch.cat(turned, -1) if block.neox else torch.stack(turned, -1).flatten(-2)
