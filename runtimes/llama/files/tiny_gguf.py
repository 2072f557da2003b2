"""A tiny quantized Llama as GGUF bytes, made by hand: what the probe decodes. Needs no library but numpy.

Weights are Q4_0 and Q8_0 in sizes that reach the engine's fastest kernels, which are the ones that may not run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from edgedecode.gguf.encoding import F32, WrittenTensor, write_gguf
from edgedecode.gguf.fields import Value

__all__ = ["tiny_model"]

HIDDEN = MLP = 256
HEADS, HEAD_SIZE, CONTEXT, ROWS = 4, 64, 256, 64
Q4_0, Q8_0 = 2, 8
BLOCK = 32
PAYLOAD = {Q4_0: 16, Q8_0: 32}
"""Bytes of a block after its float16 scale."""


def tiny_model() -> bytes:
    """Return one layer of random weights and no vocabulary."""
    rng = np.random.default_rng(0)
    tensors = [
        ("token_embd.weight", (HIDDEN, ROWS), Q8_0),
        ("output_norm.weight", (HIDDEN,), F32),
        ("output.weight", (HIDDEN, ROWS), Q8_0),
        ("blk.0.attn_norm.weight", (HIDDEN,), F32),
        *((f"blk.0.attn_{part}.weight", (HIDDEN, HIDDEN), Q4_0) for part in ("q", "k", "v", "output")),
        ("blk.0.ffn_norm.weight", (HIDDEN,), F32),
        *((f"blk.0.ffn_{part}.weight", (HIDDEN, MLP), Q4_0) for part in ("gate", "up", "down")),
    ]
    file = BytesIO()
    written = [WrittenTensor(name, shape, kind, _values(shape, kind, rng)) for name, shape, kind in tensors]
    write_gguf(file, _fields(), written)
    return file.getvalue()


def _fields() -> dict[str, Value]:
    sizes = {
        "block_count": 1,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": HEAD_SIZE,
        "vocab_size": ROWS,
    }
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "none",
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **{f"llama.{name}": size for name, size in sizes.items()},
    }


def _values(shape: Sequence[int], kind: int, rng: np.random.Generator) -> bytes:
    count = int(np.prod(shape))
    if kind == F32:
        return np.ones(count, np.float32).tobytes()
    blocks = rng.integers(0, 256, (count // BLOCK, 2 + PAYLOAD[kind]), dtype=np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
    return blocks.tobytes()
