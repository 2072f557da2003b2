"""Reads a LoRA adapter from a GGUF file, as llama.cpp's `convert_lora_to_gguf` writes it."""

from __future__ import annotations

from pathlib import Path

from edgedecode.gguf.adapter import check_adapter
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.gguf_names import module_of
from edgedecode.gguf.header import Header
from edgedecode.pack.entries import AdapterEntry

__all__ = ["read_gguf_adapter"]

_INVOCATION = "adapter.alora.invocation_tokens"


def read_gguf_adapter(contents: Contents, path: Path, header: Header, *, name: str, role: str) -> AdapterEntry:
    """Check an adapter against the header of the model `name`; return its entry, with an empty `file`.

    contents: those of the file at `path`, including arrays. Raises as `check_adapter` does.
    """
    adapter = check_adapter(contents, path, header, name=name)
    return AdapterEntry(
        file="",
        role=role,
        rank=adapter.rank,
        alpha=adapter.alpha,
        modules=tuple(dict.fromkeys(_module(each, header.architecture) for each in adapter.ranks)),
        invocation=tuple(int(token) for token in contents.arrays.get(_INVOCATION, ()) if not isinstance(token, str)),
    )


def _module(tensor: str, architecture: str) -> str:
    """Return PEFT's name of a projection, or llama.cpp's if PEFT's is unknown."""
    found = module_of(tensor, architecture)
    return tensor.removesuffix(".weight").split(".", 2)[-1] if found is None else found.module
