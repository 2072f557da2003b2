"""Compares a head's own embedding with its target's, which the head reads here: publishers mostly copy it."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.gguf.encoding import F32
from edgedecode.gguf.header import EMBEDDING
from edgedecode.pack.manifest import ModelEntry

from ..graph.quantize import ByteArray
from .head import Head, HeadTensor
from .target_rows import target_tensor

_ROWS = 2048
_ALIKE = 0.9
"""Less than the median cosine of rows and the same ones in blocks of 3 bits, and more than that of other rows."""


def without_table(head: Head, target: ModelEntry, root: Path) -> tuple[Head, str, bool]:
    """Return the head without an embedding of its own, a note on it, and whether it is another than the target's."""
    table = head.tensors.get(EMBEDDING)
    if table is None:
        return head, "", False
    head = replace(head, tensors={name: tensor for name, tensor in head.tensors.items() if name != EMBEDDING})
    theirs = _rows(target_tensor(target, root, EMBEDDING))
    ours = None if theirs is None else _rows(table)
    if theirs is None or ours is None:
        return head, "its embed_tokens are left out, not compared with the target's, which it reads", False
    ours, theirs = ours[: len(theirs)], theirs[: len(ours)]
    sizes = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    alike = float(np.median((ours * theirs).sum(axis=1) / np.maximum(sizes, 1e-30)))
    if alike > _ALIKE:
        return head, "its embed_tokens are left out: it reads the target's, which are the same", False
    return head, f"its embed_tokens are not the target's, which it reads here (median cosine {alike:.2f})", True


def _rows(table: HeadTensor | None) -> FloatArray | None:
    """Return the first rows' values; None: there are none, or gguf does not know their type."""
    if table is None:
        return None
    found = table.first(_ROWS)
    return np.asarray(found, np.float32) if table.kind == F32 else _floats(np.asarray(found, np.uint8), table.kind)


def _floats(data: ByteArray, kind: int) -> FloatArray | None:
    """Return the values of rows of ggml's blocks; None: gguf is not installed, or does not know the type."""
    with suppress(ImportError, NotImplementedError, ValueError):
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return np.asarray(dequantize(data, GGMLQuantizationType(kind)), np.float32)
    return None
