"""A drafting head of EAGLE-3's form as a torch module, which reads its own outputs as in use (2503.01840, §3.2)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from ..batches import Batch
from ..network import Network

DEPTH = 3
"""Steps of a draft that are trained, each on the outputs of the one before (2503.01840, §3.2)."""
_MASKED = -1e30


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The sizes of a head: those of its target's layers."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    rows: int
    """Ids that it proposes."""
    epsilon: float
    base: float
    """RoPE's base."""

    @property
    def parameters(self) -> int:
        """The number of the head's parameters."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        layer = 2 * self.hidden * (queries + 2 * keys) + queries * self.hidden + 3 * self.hidden * self.mlp
        return layer + (3 * self.hidden + self.rows + 4) * self.hidden


class RmsNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self._epsilon)


class _Attention(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        inner = 2 * sizes.hidden
        self.q_proj = nn.Linear(inner, sizes.heads * sizes.head_size, bias=False)
        self.k_proj = nn.Linear(inner, sizes.kv_heads * sizes.head_size, bias=False)
        self.v_proj = nn.Linear(inner, sizes.kv_heads * sizes.head_size, bias=False)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_size, sizes.hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.mlp, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.mlp, bias=False)
        self.down_proj = nn.Linear(sizes.mlp, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(sizes.hidden, sizes.epsilon)
        self.hidden_norm = RmsNorm(sizes.hidden, sizes.epsilon)
        self.post_attention_layernorm = RmsNorm(sizes.hidden, sizes.epsilon)
        self.self_attn = _Attention(sizes)
        self.mlp = _Mlp(sizes)


class HeadNetwork(Network):
    """The head. Its parameters have the names of speculators' layout."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes, self.depth = sizes, DEPTH
        self.fc = nn.Linear(3 * sizes.hidden, sizes.hidden, bias=False)
        self.layers = nn.ModuleList([_Layer(sizes)])
        self.norm = RmsNorm(sizes.hidden, sizes.epsilon)
        self.lm_head = nn.Linear(sizes.hidden, sizes.rows, bias=False)

    def outputs(self, batch: Batch, table: Tensor, *, depth: int) -> Iterator[Tensor]:
        return self.depths(batch.features, embedding(batch.next_tokens, table), batch.lengths, depth=depth)

    def depths(self, features: Tensor, embedded: Tensor, lengths: Tensor, *, depth: int) -> Iterator[Tensor]:
        """Yield what the final norm makes of each row at each depth, [texts, positions, hidden].

        features: [texts, positions, 3 · hidden], the target's. embedded: of each position's next token. At depth 0 a
        row reads the target's features; at depth j its draft began j positions before, so that it reads the output of
        the row before at depth j - 1, and sees the features' keys up to where its draft began, and its draft's own.
        Rows before position j have no draft: they are to be left out.
        """
        layer, attention = self.layers[0], self.layers[0].self_attn
        positions = embedded.shape[1]
        cos, sin = self._rotation(positions)
        places = torch.arange(positions)
        visible = places[None, :] < lengths[:, None]  # [texts, keys]
        read = layer.input_layernorm(embedded)
        hidden = self.fc(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(depth):
            both = torch.cat([read, layer.hidden_norm(hidden)], -1)
            query = _rotated(self._split(attention.q_proj(both)), cos, sin)
            keys.append(_rotated(self._split(attention.k_proj(both)), cos, sin))
            values.append(self._split(attention.v_proj(both)))
            seen = (places[:, None] - step >= places[None, :]) & visible[:, None]  # [texts, rows, keys]
            attended = self._attend(query, keys, values, seen)
            x = hidden + attention.o_proj(attended)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            yield self.norm(x)
            hidden = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)

    def _attend(self, query: Tensor, keys: list[Tensor], values: list[Tensor], seen: Tensor) -> Tensor:
        """Return the attention of a step's rows: to the first step's keys, and to one key of each later step."""
        texts, positions, heads, size = query.shape
        grouped = query.view(texts, positions, self.sizes.kv_heads, -1, size).permute(0, 2, 3, 1, 4) * size**-0.5
        first = keys[0].permute(0, 2, 3, 1)[:, :, None]  # [texts, kv heads, 1, size, keys]
        scores = [torch.matmul(grouped, first).masked_fill(~seen[:, None, None], _MASKED)]
        step = len(keys) - 1
        own = [(_later(each, step - index), _later(values[index], step - index)) for index, each in enumerate(keys)][1:]
        scores += [(grouped * key.permute(0, 2, 1, 3)[:, :, None]).sum(-1, keepdim=True) for key, _ in own]
        with torch.autocast("cpu", enabled=False):  # which would compute it in 32 bits, four times as long
            weights = torch.cat(scores, -1).softmax(-1)
        mixed = torch.matmul(weights[..., :positions], values[0].permute(0, 2, 1, 3)[:, :, None])
        for index, (_, value) in enumerate(own):
            mixed = mixed + weights[..., positions + index, None] * value.permute(0, 2, 1, 3)[:, :, None]
        return mixed.permute(0, 3, 1, 2, 4).reshape(texts, positions, heads * size)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.sizes.head_size)

    def _rotation(self, positions: int) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.sizes.head_size, 2) / self.sizes.head_size
        angles = torch.outer(torch.arange(positions).float(), self.sizes.base**-half)
        return angles.cos()[None, :, None], angles.sin()[None, :, None]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.float().chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


def _later(x: Tensor, count: int) -> Tensor:
    """Return what was `count` positions before, [texts, positions, ...]."""
    return x if not count else torch.cat([torch.zeros_like(x[:, :count]), x[:, :-count]], 1)
