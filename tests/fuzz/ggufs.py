"""GGUF files from plain values: a small Llama with a vocabulary, in which any number and name can be changed."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from typing import Any

from edgedecode.gguf.fields import ARRAY, FLOAT32, FORMATS, TEXT, UINT32
from tests.small_tokenizers import byte_level

F32, Q8_0 = 0, 8
INT32, BOOL = 5, 7
HIDDEN, MLP, HEADS, ROWS, LAYERS = 32, 32, 2, 323, 1
HEAD_SIZE = HIDDEN // HEADS


@dataclass(frozen=True)
class Value:
    """A field's type and value; for an array also the elements' type and the claimed count (None: the true one)."""

    kind: int
    value: Any
    inner: int = 0
    count: int | None = None

    @property
    def encoded(self) -> bytes:
        if self.kind != ARRAY:
            return struct.pack("<I", self.kind % 2**32) + _scalar(self.kind, self.value)
        count = len(self.value) if self.count is None else self.count
        items = b"".join(_scalar(self.inner, item) for item in self.value)
        return struct.pack("<IIQ", ARRAY, self.inner % 2**32, count % 2**64) + items


@dataclass(frozen=True)
class Tensor:
    """A tensor's entry; offset None: after the previous tensor."""

    shape: tuple[int, ...]
    kind: int = F32
    offset: int | None = None


@dataclass(frozen=True)
class File:
    """A complete file; counts None: the true ones. keep: the thousandths of its bytes that are written."""

    fields: Mapping[str, Value]
    tensors: Mapping[str, Tensor]
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    field_count: int | None = None
    keep: int = 1000

    @property
    def encoded(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.fields) if self.field_count is None else self.field_count,
        )
        head = self.magic + struct.pack("<IQQ", self.version % 2**32, *(count % 2**64 for count in counts))
        head += b"".join(_text(name) + value.encoded for name, value in self.fields.items())
        end = 0
        for name, tensor in self.tensors.items():
            offset = end if tensor.offset is None else tensor.offset
            sizes = struct.pack(f"<{len(tensor.shape)}Q", *(size % 2**64 for size in tensor.shape))
            head += _text(name) + struct.pack("<I", len(tensor.shape)) + sizes
            head += struct.pack("<IQ", tensor.kind % 2**32, offset % 2**64)
            end += _true_nbytes(name)
        whole = head + bytes(-len(head) % 32) + bytes(end)
        return whole[: len(whole) * self.keep // 1000]


@cache
def sound() -> File:
    """Return a file that imports; its weights are zeros."""
    return File(_fields(), {name: Tensor(shape, _kind(shape)) for name, shape in _shapes().items()})


def with_field(file: File, name: str, value: Value | None) -> File:
    fields = {key: kept for key, kept in file.fields.items() if key != name}
    return replace(file, fields=fields if value is None else {**fields, name: value})


def with_tensor(file: File, name: str, tensor: Tensor | None) -> File:
    tensors = {key: kept for key, kept in file.tensors.items() if key != name}
    return replace(file, tensors=tensors if tensor is None else {**tensors, name: tensor})


def _fields() -> dict[str, Value]:
    tokens = sorted(byte_level().get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    sizes = {
        "block_count": LAYERS,
        "context_length": 64,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD_SIZE,
        "attention.value_length": HEAD_SIZE,
        "rope.dimension_count": HEAD_SIZE,
        "vocab_size": ROWS,
    }
    return {
        "general.architecture": Value(TEXT, "llama"),
        "general.name": Value(TEXT, "tiny"),
        "general.alignment": Value(UINT32, 32),
        **{f"llama.{name}": Value(UINT32, size) for name, size in sizes.items()},
        "llama.attention.layer_norm_rms_epsilon": Value(FLOAT32, 1e-5),
        "tokenizer.ggml.model": Value(TEXT, "gpt2"),
        "tokenizer.ggml.pre": Value(TEXT, "gpt-2"),
        "tokenizer.ggml.tokens": Value(ARRAY, [token for token, _ in tokens], TEXT),
        "tokenizer.ggml.token_type": Value(ARRAY, [1] * (ROWS - 3) + [3, 4, 4], INT32),
        "tokenizer.ggml.merges": Value(ARRAY, _merges(), TEXT),
        "tokenizer.ggml.eos_token_id": Value(UINT32, 320),
        "tokenizer.ggml.add_bos_token": Value(BOOL, False),
        "tokenizer.chat_template": Value(TEXT, "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    }


def _merges() -> list[str]:
    import json

    merges = json.loads(byte_level().to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _shapes() -> dict[str, tuple[int, ...]]:
    square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (HIDDEN, HIDDEN))
    mlp = {"ffn_gate": (HIDDEN, MLP), "ffn_up": (HIDDEN, MLP), "ffn_down": (MLP, HIDDEN)}
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, ROWS), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in {**square, **mlp}.items()}
        found |= {f"blk.{layer}.{norm}.weight": (HIDDEN,) for norm in ("attn_norm", "ffn_norm")}
    return found


def _kind(shape: Sequence[int]) -> int:
    return Q8_0 if len(shape) > 1 else F32


def _true_nbytes(name: str) -> int:
    shape = _shapes().get(name, (HIDDEN,))
    values = 1
    for size in shape:
        values *= size
    nbytes = values // 32 * 34 if _kind(shape) == Q8_0 else values * 4
    return nbytes + -nbytes % 32


def _scalar(kind: int, value: Any) -> bytes:
    """Encode by the type; a value of another kind, or an unknown type, is encoded as text."""
    form = FORMATS.get(kind)
    if form is None or isinstance(value, str):
        return _text(str(value))
    if form in "fd":
        return struct.pack("<f", min(value, 3e38)) if form == "f" else struct.pack("<d", value)
    width = struct.calcsize(form)
    return (int(value if isfinite(value) else 0) % 2 ** (8 * width)).to_bytes(width, "little")


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
