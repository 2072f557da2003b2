"""llama.cpp's importance files: how much the squared error of each column of a matrix counts.

A column's importance is the mean square of its input on a text. Layout: tools/imatrix/imatrix.cpp of llama.cpp, whose
`llama-imatrix` writes sums and counts as a GGUF file; its older `.dat` files are read too.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.cache import aside
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.gguf.contents import MAGIC, read_contents
from edgedecode.gguf.encoding import F32, WrittenTensor, encoded_field, write_encoded
from edgedecode.gguf.fields import ARRAY
from edgedecode.gguf.header import EMBEDDING as TABLE
from edgedecode.gguf.header import OUTPUT
from edgedecode.pack.integrity import file_sha256

from ..graph.error_feedback import Importance, Moments
from ..graph.model_shape import Shape
from ..graph.recipe import EMBEDDING, HEAD, Recipe

_SUMS, _COUNTS, _TEXTS = ".in_sum2", ".counts", "imatrix.datasets"
_CHUNK = 512
"""Tokens of a chunk, in which llama.cpp counts a text."""
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class KnownImportance:
    """A file's importance by `projection_name`; its digest stands for the values."""

    path: Path
    digest: str
    columns: Mapping[str, Importance] = field(repr=False, compare=False)


Sums: TypeAlias = Mapping[str, tuple[FloatArray, float]]
"""By tensor name: the sum of each column's squares, float32 [columns], and the number of tokens."""


@dataclass(frozen=True, slots=True)
class _Input:
    """A projection's input: its `projection_name`, its columns, and llama.cpp's names of the matrices that read it."""

    name: str
    columns: int
    tensors: tuple[str, ...]


def read_importance(path: Path, shape: Shape, recipe: Recipe, *, name: str) -> KnownImportance:
    """Read the importance for a model, with the 4-bit matrices of `recipe`, from one of llama.cpp's files.

    Raises ExportError, or ManifestError for a damaged GGUF file, if it is of another kind or another model's.
    """
    found = {tensor: sums / np.float32(count) for tensor, (sums, count) in read_sums(path).items()}
    other = f"{path} is the importance file of another model than {name}"
    layers = [int(layer[1]) for tensor in found if (layer := _LAYER.match(tensor))]
    if max(layers, default=0) >= shape.layers:
        raise ExportError(f"{other}: it has {max(layers) + 1} layers, not {shape.layers}")
    columns: dict[str, Importance] = {}
    for wanted in _inputs_of(shape):
        tensor = next((tensor for tensor in wanted.tensors if tensor in found), None)
        if tensor is not None:
            if len(found[tensor]) != wanted.columns:
                raise ExportError(f"{other}: its {tensor} has {len(found[tensor])} columns, not {wanted.columns}")
            columns[wanted.name] = Importance(found[tensor])
        elif wanted.name in (HEAD, EMBEDDING):
            if recipe.head.bits == 4:
                raise ExportError(f"{path} has no {wanted.tensors[0]}, as usual for llama-imatrix: use --head-bits 8")
        elif recipe.scheme_of(wanted.name).bits == 4:
            raise ExportError(f"{other}: it has no {wanted.tensors[0]}")
    return KnownImportance(path.absolute(), file_sha256(path), columns)


def sums_of(moments: Mapping[str, Moments], shape: Shape, *, tokens: int) -> Sums:
    """Return what was measured on a text of `tokens` tokens; moments: by `projection_name`."""
    return {
        tensor: (np.asarray(moments[known.name].means() * np.float32(tokens), np.float32), float(tokens))
        for known in _inputs_of(shape)
        if known.name in moments
        for tensor in known.tensors
    }


def check_file(path: Path, *, option: str) -> None:
    """Raise ExportError if a file cannot be written there."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ExportError(f"{path} cannot be written: give another {option}")


def write_sums(path: Path, sums: Sums, *, texts: Sequence[str]) -> None:
    """Write sums on the texts of these names as llama-imatrix does; the file is complete or does not appear.

    Raises ExportError if it cannot be written.
    """
    tokens = max(int(count) for _, count in sums.values())
    fields = [
        encoded_field("general.type", "imatrix"),
        encoded_field(_TEXTS, list(texts), kind=ARRAY),
        encoded_field("imatrix.chunk_count", -(-tokens // _CHUNK)),
        encoded_field("imatrix.chunk_size", _CHUNK),
    ]
    tensors = [
        tensor
        for name, (values, count) in sorted(sums.items())
        for tensor in (
            WrittenTensor(name + _SUMS, (len(values), 1), F32, values.astype("<f4").tobytes()),
            WrittenTensor(name + _COUNTS, (1, 1), F32, struct.pack("<f", count)),
        )
    ]
    try:
        with aside(path) as fresh, fresh.open("wb") as file:
            write_encoded(file, fields, tensors)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}") from None


def _inputs_of(shape: Shape) -> Iterator[_Input]:
    """Yield the inputs of a model's matrices; a tied head is named like the table."""
    fused = ARCHITECTURES[shape.architecture].fused
    parts = (
        ("attn.qkv_proj", shape.hidden, ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v")),
        ("attn.o_proj", shape.heads * shape.head_size, ("attn_output",)),
        ("mlp.gate_up_proj", shape.hidden, ("ffn_up",) if fused else ("ffn_gate", "ffn_up")),
        ("mlp.down_proj", shape.mlp, ("ffn_down",)),
    )
    for layer in range(shape.layers):
        for name, columns, tensors in parts:
            names = tuple(f"blk.{layer}.{tensor}.weight" for tensor in tensors)
            yield _Input(f"model.layers.{layer}.{name}", columns, names)
    yield _Input(EMBEDDING if shape.tied else HEAD, shape.hidden, (TABLE if shape.tied else OUTPUT,))


def read_sums(path: Path) -> Sums:
    """Read a file. Raises ExportError if it is of another kind or damaged, ManifestError for a damaged GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = _read_gguf(path, content) if content[:4] == MAGIC else _read_dat(path, content)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ExportError(f"the importance file {path} cannot be read: {error}") from None
    for name, (sums, count) in found.items():
        if not (np.isfinite(count) and count > 0):
            raise ExportError(f"{path} has no importance for {name}: it counts {count:g} tokens")
        if not np.isfinite(sums).all() or (sums < 0).any() or not sums.any():
            raise ExportError(f"{path} is damaged: the sums for {name} are negative, not finite or all zero")
    return found


def _wrong(path: Path, why: str) -> ExportError:
    return ExportError(f"{path} is not an importance file: {why}; give one that llama-imatrix wrote")


def _read_gguf(path: Path, content: mmap.mmap) -> Sums:
    contents = read_contents(path)
    if (kind := contents.fields.get("general.type")) != "imatrix":
        raise _wrong(path, f"its general.type is {str(kind)[:40]!r}")
    arrays: dict[str, FloatArray] = {}
    for name, tensor in contents.tensors.items():
        if name.endswith((_SUMS, _COUNTS)):
            if tensor.type != F32:
                raise _wrong(path, f"its {name} is not float32")
            arrays[name] = np.frombuffer(content, "<f4", tensor.nbytes // 4, contents.start + tensor.offset).copy()
    names = [name.removesuffix(_SUMS) for name in arrays if name.endswith(_SUMS)]
    if lost := [name for name in names if name + _COUNTS not in arrays]:
        raise _wrong(path, f"it has no {lost[0]}{_COUNTS}")
    if not names:
        raise _wrong(path, "it has no sums")
    return {name: (arrays[name + _SUMS], float(arrays[name + _COUNTS].min())) for name in names}


def _read_dat(path: Path, content: mmap.mmap) -> Sums:
    """Read entries: a name, a count, and float32 values; name and values follow their length."""
    found: dict[str, tuple[FloatArray, float]] = {}
    try:
        (entries,), at = struct.unpack_from("<I", content), 4
        for _ in range(entries):
            (length,) = struct.unpack_from("<I", content, at)
            count, columns = struct.unpack_from("<iI", content, at + 4 + length)
            name = content[at + 4 : at + 4 + length].decode()
            at += 12 + length
            found[name] = np.frombuffer(content, "<f4", columns, at).copy(), count
            at += 4 * columns
    except (struct.error, ValueError):
        raise _wrong(path, "it is of another format, or truncated") from None
    if not found:
        raise _wrong(path, "it has no entries")
    return found
