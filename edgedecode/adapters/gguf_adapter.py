"""Reads a LoRA adapter from a GGUF file, as llama.cpp's `convert_lora_to_gguf` writes it, and what it can change."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ManifestError
from edgedecode.gguf.adapter import check_adapter, check_values
from edgedecode.gguf.architectures import BY_NAME
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.fields import UINT32
from edgedecode.gguf.gguf_names import module_of
from edgedecode.gguf.header import Header
from edgedecode.pack.entries import AdapterEntry
from edgedecode.pack.manifest import STACKS

from .adapter_parts import Projection, check_invocation

_INVOCATION = "adapter.alora.invocation_tokens"


def read_gguf_adapter(
    contents: Contents, path: Path, header: Header, *, name: str, role: str, vocabulary_size: int
) -> AdapterEntry:
    """Check an adapter against the header of the model `name`; return its entry, with an empty `file`.

    contents: those of the file at `path`, including arrays. Raises as `check_adapter` and `check_invocation` do.
    """
    adapter = check_adapter(contents, path, header, name=name)
    invocation = _invocation(contents, path)
    check_invocation(invocation, vocabulary_size=vocabulary_size)
    check_values(contents, path)
    return AdapterEntry(
        file="",
        role=role,
        rank=adapter.rank,
        alpha=adapter.alpha,
        modules=tuple(dict.fromkeys(_module(each, header.architecture) for each in adapter.ranks)),
        invocation=invocation,
    )


def lora_projections(header: Header) -> Iterator[Projection]:
    """Yield the projections of a GGUF file that a PEFT adapter can change; none if their order is not known."""
    if header.architecture not in BY_NAME:
        return
    for name, tensor in header.tensors.items():
        found = module_of(name, header.architecture)
        if found is not None and len(tensor.shape) == 2:
            yield Projection(found.layer, found.module, inputs=tensor.shape[0], outputs=tensor.shape[1])


def lora_modules(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Return the names of the projections, and of the parts of stacked projections."""
    own = {projection.module for projection in projections}
    return tuple(sorted(own.union(*(STACKS[module] for module in own if module in STACKS))))


def file_order(up: FloatArray, module: str, architecture: str, *, head_size: int, kv_width: int) -> FloatArray:
    """Return an adapter's second matrix [outputs, rank] with its rows as in GGUF files of this architecture.

    There, rows that rotate together are adjacent in a query's or key's head, not in its two halves.
    """
    known, (outputs, rank) = BY_NAME.get(architecture), up.shape
    rotated = {"q_proj": outputs, "k_proj": outputs, "qkv_proj": outputs - kv_width}.get(module, 0)
    if known is None or not known.interleaved or not rotated:
        return up
    heads = up[:rotated].reshape(rotated // head_size, 2, head_size // 2, rank).swapaxes(1, 2)
    return np.concatenate([heads.reshape(rotated, rank), up[rotated:]])


def _invocation(contents: Contents, path: Path) -> tuple[int, ...]:
    """Return the tokens that activate an adapter. Raises ManifestError for a field that llama.cpp does not accept."""
    if _INVOCATION in contents.fields and contents.element_types.get(_INVOCATION) != UINT32:
        raise ManifestError(f"{path}: {_INVOCATION} is not a list of unsigned 32-bit integers: convert it again")
    return tuple(int(token) for token in contents.arrays.get(_INVOCATION, ()))


def _module(tensor: str, architecture: str) -> str:
    """Return PEFT's name of a projection, or llama.cpp's if PEFT's is unknown."""
    found = module_of(tensor, architecture)
    return tensor.removesuffix(".weight").split(".", 2)[-1] if found is None else found.module
