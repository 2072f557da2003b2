"""LoRA adapters of PEFT that go into an exported pack, as GGUF files for llama.cpp beside the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.gguf.header import read_header
from edgedecode.pack.adapter_entry import AdapterEntry
from edgedecode.pack.manifest import ModelEntry

from .gguf.adapter import check_folder, write_adapter
from .graph.architectures import Shape
from .imports.gguf.adapter import read_adapter

__all__ = ["adapter_entries", "check_adapters", "write_adapters"]


def check_adapters(folders: Mapping[str, Path], *, gguf: bool) -> None:
    """Check what needs no weights. Raises ExportError. gguf: the target becomes a GGUF file, too."""
    if folders and not gguf:
        raise ExportError("adapters become GGUF files, which go with the target's: add --formats onnx,gguf")
    for folder in folders.values():
        check_folder(folder)


def write_adapters(folders: Mapping[str, Path], pack: Path, *, shape: Shape) -> None:
    """Write each into the pack, before the long work on the target, of this shape. Raises ExportError."""
    for name, folder in folders.items():
        path = pack / _file(name)
        path.parent.mkdir(exist_ok=True)
        write_adapter(folder, path, shape=shape)


def adapter_entries(folders: Mapping[str, Path], pack: Path, *, target: ModelEntry) -> dict[str, AdapterEntry]:
    """Check each against the target's GGUF file as the engine's runtime will. Raises ExportError naming the folder."""
    header = read_header(pack / target.gguf) if folders else None
    entries = {}
    for name, folder in folders.items():
        assert header is not None
        path = pack / _file(name)
        try:
            entry = read_adapter(path, header, name="target", role="target")
        except ExportError as error:  # the file lies in a folder that will be gone
            raise ExportError(str(error).replace(str(path), str(folder))) from None
        entries[name] = replace(entry, file=_file(name))
    return entries


def _file(name: str) -> str:
    return f"adapters/{name}.gguf"
