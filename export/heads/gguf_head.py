"""Heads as GGUF files, read and written; a pack holds its head as one.

EAGLE-3's are of llama.cpp's architecture eagle3. llama.cpp reads such a file unless the head has what it lacks:
`norm_output`, norms over each feature, q/k norms, biases or a window. MTP's have an architecture of this program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgedecode.arrays import FloatArray, IntArray, bfloat16_floats
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ASSISTANT, BLOCK_HEAD, HEAD, HEAD_IDS, HEADS, MARKOV
from edgedecode.gguf.contents import BLOCKS, Contents, Tensor, read_contents
from edgedecode.gguf.encoding import F32, WrittenTensor, encoded_field, write_encoded
from edgedecode.gguf.fields import ARRAY, BOOL, INT32, Value
from edgedecode.gguf.header import EMBEDDING, OUTPUT

from ..frameworks import refused
from ..gguf.row_source import BLOCK, transcode
from ..graph.quantize import ByteArray, Scheme, quantize
from .head import Head, HeadShape, HeadTensor, checked_head
from .mtp_layer import has_mtp, is_gated, placed_mtp

_F16, _BF16, _I32, _I64 = 1, 30, 26, 27
_KINDS = {4: 2, 8: 8, 16: _F16, 32: F32}
"""Bits of a matrix's weights → ggml's type."""
_TAPS = ("target_layers", "extract_layers")
"""The layers' field, under its name of today and its first."""


def read_gguf_head(path: Path) -> Head:
    """Read a GGUF file. Quantized matrices keep their blocks. Raises ExportError in one line."""
    with refused():
        contents = read_contents(path, arrays=True)
    tensors = {
        name: gguf_tensor(path, contents, tensor) for name, tensor in contents.tensors.items() if name != HEAD_IDS
    }
    if (found := contents.fields.get("general.architecture")) not in HEADS:
        if not has_mtp(contents.tensors, layers := model_layers(contents)):
            raise ExportError(f"{path} has the architecture {str(found)[:40]!r}: a drafting head has {HEAD.name!r}")
        placed = placed_mtp(tensors, layers, source=path)
        shape = _shape(contents, placed, None, path=path)
        return checked_head(replace(shape.as_mtp(gated=is_gated(placed)), window=0, verifier=""), placed, None)
    if found in (ASSISTANT.name, BLOCK_HEAD.name):
        raise ExportError(f"{path} is a drafter of another form ({found}): give the folder that it was converted from")
    if (layers := _integer(contents, "block_count", 1)) != 1:
        raise ExportError(f"{path} has {layers} layers: heads have one")
    ids = None
    if (listed := contents.tensors.get(HEAD_IDS)) is not None:
        ids = _ids(path, contents, listed)
    return checked_head(_shape(contents, tensors, ids, path=path), tensors, ids)


def write_gguf_head(file: BinaryIO, head: Head, *, bits: int, taps: Sequence[int]) -> None:
    """Write a head whose matrices in floats get these bits.

    taps: the target's layers whose inputs it reads.
    """
    shape, kind = head.shape, head.shape.kind
    numbers: dict[str, Value] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.mlp,
        "vocab_size": shape.vocabulary or shape.rows,
        "target_hidden_size": shape.target_hidden,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": float(shape.epsilon),
        "rope.dimension_count": shape.rotated,
        "rope.freq_base": float(shape.base),
        **({"attention.sliding_window": shape.window} if shape.window else {}),
        **({"rope.scaling.type": "linear", "rope.scaling.factor": float(shape.stretch)} if shape.stretch != 1 else {}),
        **({"block_size": shape.block, "mask_token_id": shape.mask} if shape.is_block else {}),
    }
    flags = {
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": "enc.output_norm.weight" in head.tensors,
        "norm_output": shape.norm_output,
        **({"attention.gated": True} if shape.gated else {}),
        **({"from_anchor": shape.from_anchor} if shape.is_block else {}),
    }
    texts = {"license": shape.license, "base_model.0.name": shape.verifier}
    fields = [
        encoded_field("general.architecture", kind),
        encoded_field("tokenizer.ggml.model", "no_vocab"),  # llama.cpp refuses a file without the field
        *(encoded_field(f"general.{name}", value) for name, value in texts.items() if value),
        *(encoded_field(f"{kind}.{name}", value) for name, value in numbers.items()),
        *(encoded_field(f"{kind}.{name}", value, kind=BOOL) for name, value in flags.items()),
        encoded_field(f"{kind}.{_TAPS[0]}", list(taps), kind=ARRAY, element=INT32),
    ]
    write_encoded(file, fields, written_tensors(head.tensors, head.ids, bits=bits))


def stored_bits(tensor: HeadTensor, bits: int) -> int:
    """Return the ggml type in which a matrix is written: its own if it is quantized, else that of these bits."""
    if tensor.kind != F32:
        return tensor.kind
    if len(tensor.shape) < 2:
        return F32
    return _KINDS[bits] if tensor.shape[-1] % BLOCK == 0 else _F16


def written_tensors(tensors: Mapping[str, HeadTensor], ids: IntArray | None, *, bits: int) -> list[WrittenTensor]:
    """Return a head's tensors and ids as they are written, matrices in floats rounded to these bits."""
    written = [_written(name, tensors[name], bits=bits) for name in sorted(tensors)]
    if ids is not None:
        written.append(WrittenTensor(HEAD_IDS, (len(ids),), _I64, ids.astype("<i8").tobytes()))
    return written


def _written(name: str, tensor: HeadTensor, *, bits: int) -> WrittenTensor:
    bits = max(bits, 8) if name in MARKOV else bits  # few of their rows are read at a time
    kind = stored_bits(tensor, bits)

    def data() -> list[bytes]:
        values = tensor.read()
        if tensor.kind == F32 and not np.isfinite(values).all():
            raise ExportError(f"{name} has values that are not finite: the head is damaged")
        if tensor.kind != F32 or kind == F32:
            return [np.ascontiguousarray(values).tobytes()]
        if kind == _F16:
            return [_halves(values, name).tobytes()]
        scheme = Scheme(bits, BLOCK)
        return [transcode(quantize(np.asarray(values, np.float32), scheme), scheme).tobytes()]

    return WrittenTensor(name, tensor.shape[::-1], kind, data)


def _halves(values: FloatArray | ByteArray, name: str) -> FloatArray:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise ExportError(f"{name} has values beyond 16-bit floats")
    return halves


def _shape(contents: Contents, tensors: Mapping[str, HeadTensor], ids: IntArray | None, *, path: Path) -> HeadShape:
    hidden, heads = (_needed(contents, name, path) for name in ("embedding_length", "attention.head_count"))
    output, table = tensors.get(OUTPUT), tensors.get(EMBEDDING)
    kind = str(contents.fields.get("general.architecture"))
    scaling = contents.fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ExportError(f"{path}: the head's RoPE scaling is {scaling!r}: none and linear are supported")
    taps = next((found for name in _TAPS if (found := contents.layers.get(f"{kind}.{name}"))), ())
    vocabulary = contents.integer(f"{kind}.vocab_size") or contents.integer("tokenizer.ggml.tokens")
    vocabulary = vocabulary or (table.shape[0] if table is not None else 0)
    rows = vocabulary if ids is None else len(ids)
    return HeadShape(
        hidden=hidden,
        target_hidden=_integer(contents, "target_hidden_size", hidden),
        rows=output.shape[0] if output is not None else rows,
        heads=heads,
        kv_heads=_integer(contents, "attention.head_count_kv", heads),
        head_size=_integer(contents, "attention.key_length", hidden // heads),
        mlp=_needed(contents, "feed_forward_length", path),
        epsilon=_number(contents, "attention.layer_norm_rms_epsilon", 1e-6),
        base=_number(contents, "rope.freq_base", 10000.0),
        context=_integer(contents, "context_length", 2048),
        vocabulary=vocabulary,
        stretch=_number(contents, "rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
        window=_integer(contents, "attention.sliding_window", 0),
        taps=tuple(taps),
        norm_before_residual=bool(_integer(contents, "norm_before_residual", 0)),
        norm_output=bool(_integer(contents, "norm_output", 0)),
        tied=output is None,
        verifier=str(contents.fields.get("general.base_model.0.name", "")),
        license=str(contents.fields.get("general.license", "unknown")),
        kind=kind,
        gated=bool(_integer(contents, "attention.gated", 0)),
        rotated=_integer(contents, "rope.dimension_count", _integer(contents, "attention.key_length", hidden // heads)),
    )


def _field(contents: Contents, name: str) -> str:
    return f"{contents.fields.get('general.architecture')}.{name}"


def model_layers(contents: Contents) -> int:
    """Return the layers of a model without those that draft."""
    return _integer(contents, "block_count", 0) - _integer(contents, "nextn_predict_layers", 0)


def _integer(contents: Contents, name: str, default: int) -> int:
    return contents.integer(_field(contents, name)) or default


def _needed(contents: Contents, name: str, path: Path) -> int:
    if not (found := _integer(contents, name, 0)):
        raise ExportError(f"{path} has no field {_field(contents, name)}: download the head again")
    return found


def _number(contents: Contents, name: str, default: float) -> float:
    """Return a number as it was before it was stored in 32 bits, so that every layout gives the same one."""
    value = contents.fields.get(_field(contents, name), default)
    return float(str(np.float32(value))) if isinstance(value, (int, float)) else default


def gguf_tensor(path: Path, contents: Contents, tensor: Tensor) -> HeadTensor:
    """Return a tensor of a file: floats as float32, others in their blocks."""
    floats = {F32: "<f4", _F16: "<f2", _BF16: "<u2"}.get(tensor.type)
    shape = tensor.shape[::-1]

    def read(rows: int | None = None) -> FloatArray | ByteArray:
        data = _bytes(path, contents, tensor, rows=rows)
        if floats is None:
            return data
        values = data.reshape(-1).view(floats)
        if tensor.type == _BF16:
            values = bfloat16_floats(values)
        return np.ascontiguousarray(values.reshape(-1, *shape[1:]), np.float32)

    return HeadTensor(shape, read, F32 if floats else tensor.type, read)


def _bytes(path: Path, contents: Contents, tensor: Tensor, *, rows: int | None = None) -> ByteArray:
    """Return a tensor's bytes, [rows, bytes of a row]. rows: how many to read, from the first; None: all."""
    block, nbytes = BLOCKS[tensor.type]
    all_rows = prod(tensor.shape[1:])
    rows = all_rows if rows is None else min(rows, all_rows)
    width = tensor.shape[0] // block * nbytes
    return np.memmap(path, np.uint8, "r", offset=contents.start + tensor.offset, shape=(rows, width))


def _ids(path: Path, contents: Contents, tensor: Tensor) -> IntArray:
    if tensor.type not in (_I32, _I64) or len(tensor.shape) != 1:
        raise ExportError(f"{path}: d2t is no list of integers")
    kind = "<i4" if tensor.type == _I32 else "<i8"
    return _bytes(path, contents, tensor).reshape(-1).view(kind).astype(np.int64)
