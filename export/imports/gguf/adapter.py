"""A GGUF LoRA adapter of an imported model: whether it belongs to it, and what it changes. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import CapabilityError, ExportError, InputError, ManifestError
from edgedecode.gguf.adapter import check_adapter
from edgedecode.gguf.architectures import module_of
from edgedecode.gguf.header import Header
from edgedecode.pack.adapter_entry import AdapterEntry

from .metadata import Metadata
from .source import GgufSource, open_contents

__all__ = ["ImportedAdapter", "open_adapter", "read_adapter"]


@dataclass(frozen=True, slots=True)
class ImportedAdapter:
    """A file, and its entry; the entry's `file` is set when the file has its place."""

    path: Path
    entry: AdapterEntry


def open_adapter(path: Path, *, base: GgufSource, role: str) -> ImportedAdapter:
    """Check the adapter in `path` against the model it is for. Raises ExportError: one line that says what to do."""
    return ImportedAdapter(path.resolve(), read_adapter(path, base.header, name=base.name, role=role))


def read_adapter(path: Path, header: Header, *, name: str, role: str) -> AdapterEntry:
    """Check the adapter in `path` against the model `name` of this header; return its entry without a file.

    Raises ExportError: one line that says what to do.
    """
    contents = open_contents(path)
    try:
        adapter = check_adapter(contents, path, header, name=name)
    except (CapabilityError, InputError, ManifestError) as error:
        raise ExportError(str(error)) from None
    invocation = Metadata(contents).numbers("adapter.alora.invocation_tokens")
    return AdapterEntry(
        file="",
        role=role,
        rank=adapter.rank,
        alpha=adapter.alpha,
        modules=tuple(dict.fromkeys(_module(each, header.architecture) for each in adapter.ranks)),
        invocation=tuple(int(token) for token in invocation),
    )


def _module(tensor: str, architecture: str) -> str:
    """Return PEFT's name of a projection, or llama.cpp's where PEFT's is not known."""
    found = module_of(tensor, architecture)
    return tensor.removesuffix(".weight").split(".", 2)[-1] if found is None else found.module
