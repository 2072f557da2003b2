"""Helpers of the GGUF tests: an export with a GGUF file, and the file's tensors as numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.export.graph.recipe import Recipe
from edgedecode.pack.manifest import Manifest
from tests.export.conftest import Floats, export, framework_logits, random_tokens, recipe
from tests.export.shapes import ARCHITECTURAL, GEMMA2, LIKE_LLAMA_CPP, LONG
from tests.export.tiny import TinyModel, write_model

WIDE = TinyModel(hidden=256, mlp=512, heads=4, head_size=64)
"""A model for K-quants, whose blocks span 256 columns."""
needs_engine = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")

GGUF_SHAPES = {**ARCHITECTURAL, "gemma2": replace(ARCHITECTURAL["gemma2"], more={**GEMMA2, **LIKE_LLAMA_CPP})}


def export_gguf(target: Path, out: Path, *, stored: Recipe | None = None) -> Manifest:
    """Export for both engines, without measurements on the graph."""
    return export(target, out, stored=stored or recipe(32), gguf=True)


def long_rope(folder: Path) -> Floats:
    """Export a long-rope model."""
    model = write_model(folder / "model", LONG)
    export_gguf(model, folder / "pack")
    np.save(folder / "logits.npy", framework_logits(model, random_tokens(64)))
    return Floats(folder)


def largest_error(made: Floats, logits: Callable[[Path, list[int]], FloatArray]) -> float:
    """Return the largest logit difference to transformers over the context of a GGUF file, up to 100 ids."""
    path = made.pack / made.entry.gguf
    tokens = random_tokens(min(100, context_in(path)))
    return float(np.abs(logits(path, tokens) - made.expected(len(tokens))).max())


def tensors_in(path: Path) -> Mapping[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def numbers(tensor: gguf.ReaderTensor) -> FloatArray:
    """Return a tensor as float32, [rows, columns]."""
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)


def value_of(path: Path, key: str) -> object:
    """Return the file's value of a key, or None."""
    found = path.stat()
    field = _fields_in(path, found.st_mtime_ns, found.st_size).get(key)
    return None if field is None else field.contents()


@lru_cache(maxsize=1)
def _fields_in(path: Path, modified: int, nbytes: int) -> Mapping[str, gguf.ReaderField]:
    """Read the fields of a file, cached: a large vocabulary takes ten seconds."""
    return gguf.GGUFReader(path).fields


def context_in(path: Path) -> int:
    """Return the file's context length."""
    return int(str(value_of(path, f"{value_of(path, 'general.architecture')}.context_length")))
