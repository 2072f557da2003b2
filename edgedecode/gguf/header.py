"""Reads and checks a GGUF file's header before native code sees the file, which aborts or lies about damaged ones.

Knows the format (version 2 and 3, little-endian), not the engine. Layout: ggml/include/gguf.h of llama.cpp.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.manifest import ModelEntry

from .fields import Array, FieldReader, Truncated, Value

__all__ = [
    "BLOCKS",
    "EMBEDDING",
    "Contents",
    "Header",
    "Tensor",
    "check_header",
    "header_of",
    "read_contents",
    "read_header",
]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
MOST_ITEMS = 1 << 20
"""More tensors or fields than any model has: a damaged count, which would be walked for minutes."""

BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}
"""Values a block and bytes a block, by tensor type."""
FLOAT_TYPES = (0, 1, 28, 30)
EMBEDDING = "token_embd.weight"
_LEAST_ALIGNMENT = 32
_POSITIVE = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")
"""Numbers that the engine asserts, or computes nonsense with, unless they are finite and above 0."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of its model; 0 where it does not say."""

    architecture: str
    layers: int
    rows: int
    """Rows of the embedding: the logits' width."""
    context: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    window: int
    quantized_nbytes: int
    """Bytes of quantized matrices, which the engine may repack into memory of its own."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the file lists it: `shape` innermost first, ggml's type number, bytes from the data's start."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def nbytes(self) -> int:
        block, nbytes = BLOCKS[self.type]
        return prod(self.shape) // block * nbytes


@dataclass(frozen=True, slots=True)
class Contents:
    """All that stands before the data: fields, the arrays among them where they were asked for, and tensors."""

    fields: Mapping[str, Value]
    arrays: Mapping[str, Array]
    tensors: tuple[Tensor, ...]


def read_header(path: Path) -> Header:
    """Read the header of the model at `path` and check that its tensors lie inside the file.

    Raises ManifestError in one line for a file that is missing, truncated, foreign, big-endian, newer, split, or holds
    a vocabulary only.
    """
    return header_of(read_contents(path), path)


def header_of(contents: Contents, path: Path) -> Header:
    """Return what the contents of the file at `path` say of its model. Raises ManifestError as `read_header`."""
    try:
        return _header(contents.fields, contents.tensors, path)
    except Truncated as error:
        raise _damaged(path, error) from None


def read_contents(path: Path, *, arrays: bool = False) -> Contents:
    """Read all that stands before the data, `arrays` too; raises as `read_header`, but takes what is no model."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ManifestError(f"{path} is empty: copy, download or export it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content, path, arrays=arrays)
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be read ({error.strerror or error}): export or import the pack again"
        ) from None
    except Truncated as error:
        raise _damaged(path, error) from None


def check_header(header: Header, entry: ModelEntry, *, path: Path) -> None:
    """Raise ManifestError unless the file holds a model of the entry's sizes."""
    pairs = {
        "rows": (header.rows, entry.rows),
        "layers": (header.layers, entry.layers),
        "hidden size": (header.hidden_size, entry.hidden_size),
        "KV heads": (header.kv_heads, entry.kv_heads),
        "head size": (header.head_size, entry.head_size),
    }
    for name, (found, wanted) in pairs.items():
        if found not in (wanted, 0):  # recurrent models have no heads
            raise ManifestError(f"{path} has {name} {found}, the manifest says {wanted}: export the pack again")


def _damaged(path: Path, error: Truncated) -> ManifestError:
    return ManifestError(f"{path} is truncated or damaged ({error}): copy, download or export it again")


def _read(content: mmap.mmap, path: Path, *, arrays: bool) -> Contents:
    reader = FieldReader(content, keep_arrays=arrays)
    _check_start(reader, path)
    tensor_count, field_count = reader.integer("Q"), reader.integer("Q")
    if max(tensor_count, field_count) > MOST_ITEMS:
        raise Truncated(f"it claims {tensor_count} tensors and {field_count} fields")
    fields = dict(reader.field() for _ in range(field_count))
    _check_whole(fields, tensor_count, path)
    tensors = [_tensor(reader, path) for _ in range(tensor_count)]
    _check_ends(tensors, fields, start=reader.offset, nbytes=len(content))
    return Contents(fields, reader.arrays, tuple(tensors))


def _check_start(reader: FieldReader, path: Path) -> None:
    if reader.take(4) != MAGIC:
        raise ManifestError(f"{path} is no GGUF file: give one, or export the pack again with --formats onnx,gguf")
    version = reader.integer("I")
    if version and not version & 0xFFFF:
        raise ManifestError(f"{path} is big-endian, this machine's engine is not: convert it, or export the pack here")
    if version > VERSIONS[-1]:
        raise ManifestError(
            f"{path} has GGUF version {version}, this edgedecode reads up to {VERSIONS[-1]}: upgrade edgedecode"
        )
    if version not in VERSIONS:
        raise ManifestError(f"{path} has GGUF version {version}, which is too old: convert or export it again")


def _check_whole(fields: Mapping[str, Value], tensor_count: int, path: Path) -> None:
    count = _integer(fields, "split.count")
    if count > 1:
        part = _integer(fields, "split.no") + 1
        raise ManifestError(
            f"{path} is part {part} of {count} of a split file: merge them (llama-gguf-split --merge) first"
        )
    if not tensor_count:
        raise ManifestError(f"{path} holds a vocabulary and no weights: export the model itself")


def _tensor(reader: FieldReader, path: Path) -> Tensor:
    name = reader.text()
    dimensions = reader.integer("I")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise Truncated(f"the tensor {name[:40]!r} has {dimensions} dimensions")
    shape = tuple(reader.integer("Q") for _ in range(dimensions))
    tensor = Tensor(name, shape, reader.integer("I"), reader.integer("Q"))
    if tensor.type not in BLOCKS:
        raise ManifestError(f"{path} holds {name} in the unknown type {tensor.type}: upgrade edgedecode")
    if shape[0] % BLOCKS[tensor.type][0]:
        raise Truncated(f"the tensor {name[:40]!r} has rows of {shape[0]} values, which are no whole blocks")
    return tensor


def _check_ends(tensors: list[Tensor], fields: Mapping[str, Value], *, start: int, nbytes: int) -> None:
    alignment = _integer(fields, "general.alignment") or _LEAST_ALIGNMENT
    if alignment % _LEAST_ALIGNMENT:
        raise Truncated(f"its tensors are aligned to {alignment} bytes, the engine wants {_LEAST_ALIGNMENT}")
    start += -start % alignment
    for tensor in tensors:
        if tensor.offset % alignment:
            raise Truncated(f"the tensor {tensor.name[:40]!r} starts at {tensor.offset}, off the grid of {alignment}")
        end = start + tensor.offset + tensor.nbytes
        if end > nbytes:
            raise Truncated(f"{tensor.name[:40]} ends at byte {end}, the file at {nbytes}")


def _header(fields: Mapping[str, Value], tensors: tuple[Tensor, ...], path: Path) -> Header:
    architecture = fields.get("general.architecture")
    embedding = next((tensor for tensor in tensors if tensor.name == EMBEDDING), None)
    if not isinstance(architecture, str) or embedding is None or len(embedding.shape) != 2:
        raise ManifestError(f"{path} holds no language model (no architecture or embedding): give another")
    hidden, rows = embedding.shape
    for name in _POSITIVE:
        value = fields.get(f"{architecture}.{name}", 1.0)
        if not (isinstance(value, (int, float)) and isfinite(value) and value > 0):
            raise Truncated(f"its {name} is {value}")

    def size(name: str) -> int:
        return _integer(fields, f"{architecture}.{name}")

    listed = fields.get("tokenizer.ggml.tokens") or size("vocab_size") or rows
    if listed != rows:
        raise ManifestError(f"{path} lists {listed} tokens for {rows} rows: convert or export it again")
    if not size("block_count"):
        raise Truncated("it has no layers")
    heads = size("attention.head_count")
    return Header(
        architecture=architecture,
        layers=size("block_count"),
        rows=rows,
        context=size("context_length"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=size("attention.head_count_kv") or heads,
        head_size=size("attention.key_length") or (hidden // heads if heads else 0),
        mlp_size=size("feed_forward_length"),
        window=size("attention.sliding_window"),
        quantized_nbytes=sum(tensor.nbytes for tensor in tensors if tensor.type not in FLOAT_TYPES),
    )


def _integer(fields: Mapping[str, Value], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
