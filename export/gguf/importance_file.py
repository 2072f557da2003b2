"""The importance of a model's columns, to and from llama.cpp's importance files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.gguf.header import EMBEDDING as TABLE
from edgedecode.gguf.header import OUTPUT
from edgedecode.gguf.importance import Sums, read_sums
from edgedecode.pack.integrity import file_sha256

from ..graph.error_feedback import Importance, Moments
from ..graph.model_shape import Shape
from ..graph.recipe import EMBEDDING, HEAD, Recipe

_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class KnownImportance:
    """A file's importance by `projection_name`; its digest stands for the values."""

    path: Path
    digest: str
    columns: Mapping[str, Importance] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Input:
    """A projection's input: its `projection_name`, its columns, and llama.cpp's names of the matrices that read it."""

    name: str
    columns: int
    tensors: tuple[str, ...]


def read_importance(path: Path, shape: Shape, recipe: Recipe, *, name: str) -> KnownImportance:
    """Read the importance for a model, with the 4-bit matrices of `recipe`, from one of llama.cpp's files.

    Raises what `read_sums` raises, and ExportError for another model's.
    """
    found = {tensor: sums / np.float32(count) for tensor, (sums, count) in read_sums(path)[0].items()}
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
