"""GGUF files of any size whose weights are file holes: the engine plans and allocates, but nothing is computed.

The file has its full length but takes no room on a file system with sparse files. The matrices are Q4_1: a small type
with blocks of 32 that the engine does not repack for its kernels.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from edgedecode.gguf.fields import FLOAT32, TEXT, UINT32
from edgedecode.pack.manifest import ModelEntry

__all__ = ["SparseShape", "write_sparse"]

F32, Q4_1 = 0, 3
BLOCK, BLOCK_NBYTES = 32, 20
ALIGNMENT = 32
CONTEXT = 4096
FILE = "sparse.gguf"


@dataclass(frozen=True, slots=True)
class SparseShape:
    """Sizes of a Qwen2 with a tied embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    rows: int

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def write_sparse(folder: Path, shape: SparseShape) -> ModelEntry:
    """Write the header into `folder`, the rest as a hole, and return an entry for it."""
    infos, nbytes = b"", 0
    tensors = list(_tensors(shape))
    for name, sizes in tensors:
        kind = Q4_1 if len(sizes) > 1 else F32
        infos += _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, nbytes)
        nbytes += prod(sizes) // BLOCK * BLOCK_NBYTES if kind == Q4_1 else prod(sizes) * 4
        nbytes += -nbytes % ALIGNMENT
    fields = list(_fields(shape))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields) + infos
    head += bytes(-len(head) % ALIGNMENT)
    with open(folder / FILE, "wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)
    return ModelEntry(
        architecture="qwen2",
        rows=shape.rows,
        context=CONTEXT,
        hidden_size=shape.hidden,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        parameters=sum(prod(sizes) for _, sizes in tensors),
        weights="",
        graphs={},
        gguf=FILE,
        bits=4,
        block_size=32,
        head_bits=4,
        license="",
        source="",
    )


def _tensors(shape: SparseShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, kv = shape.hidden, shape.kv_heads * shape.head_size
    yield "token_embd.weight", (hidden, shape.rows)
    yield "output_norm.weight", (hidden,)
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", (hidden,)
        for part, size in (("q", hidden), ("k", kv), ("v", kv)):
            yield f"blk.{layer}.attn_{part}.weight", (hidden, size)
            yield f"blk.{layer}.attn_{part}.bias", (size,)
        yield f"blk.{layer}.attn_output.weight", (hidden, hidden)
        for part in ("gate", "up"):
            yield f"blk.{layer}.ffn_{part}.weight", (hidden, shape.mlp)
        yield f"blk.{layer}.ffn_down.weight", (shape.mlp, hidden)


def _fields(shape: SparseShape) -> Iterator[bytes]:
    yield _text("general.architecture") + struct.pack("<I", TEXT) + _text("qwen2")
    yield _text("tokenizer.ggml.model") + struct.pack("<I", TEXT) + _text("none")
    yield _text("qwen2.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-6)
    sizes = {
        "block_count": shape.layers,
        "context_length": CONTEXT,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.mlp,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "vocab_size": shape.rows,
    }
    for name, size in sizes.items():
        yield _text(f"qwen2.{name}") + struct.pack("<II", UINT32, size)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
