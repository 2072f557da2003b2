"""Adds an adapter to a pack and removes one: files first, then the manifest by one rename, then files that went.

Whatever interrupts it, the pack is the old one or the new one: a folder of adapters that no manifest lists is passed
over by the pack's check, and removed by the next change.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from edgedecode.errors import CapabilityError, InputError, ManifestError
from edgedecode.gguf.header import read_header
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import ADAPTERS, AdapterEntry
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest, ModelEntry
from edgedecode.pack.new_folder import flush_folder
from edgedecode.pack.pack_lock import changing, replace_manifest

from .adapter_parts import Projection, Projections, graph_projections, lora_projections
from .peft_folder import CONFIG, WEIGHTS, PeftAdapter, read_peft_adapter

__all__ = ["NO_ADAPTER", "add_adapter", "check_adapter_name", "copy_adapter", "remove_adapter"]

NO_ADAPTER = "off"
"""What a chat calls none."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROLE = "target"


def add_adapter(root: Path, name: str, folder: Path) -> AdapterEntry:
    """Copy the adapter that PEFT saved in `folder` into the pack, for its target, under this name.

    Raises InputError for a name that cannot be used or is taken, ManifestError for files that cannot be used or a pack
    that is not the user's own, CapabilityError for an adapter of another model or one that the pack's graphs cannot
    take; OSError. Then the pack is as it was.
    """
    check_adapter_name(name)
    found = read_peft_adapter(folder / CONFIG, folder / WEIGHTS)
    with changing(root):
        manifest = _own_manifest(root)
        if name in manifest.adapters:
            raise InputError(f"the pack has an adapter {name!r} already: remove it first, or give another name")
        _check_fits(found, manifest, root)
        place = root / ADAPTERS / name
        shutil.rmtree(place, ignore_errors=True)  # what a killed process left
        try:
            entry = copy_adapter(found, folder, root, name)
            files = (entry.config, entry.file)
            listed = {listed: asdict(file_entry(root / listed, flushed=True)) for listed in files}
            for each in (place, place.parent, root):
                flush_folder(each)
            _replace(root, name, asdict(entry), listed=listed, gone=())
        except BaseException:
            if name not in Manifest.load(root).adapters:
                shutil.rmtree(place, ignore_errors=True)
            raise
    return entry


def check_adapter_name(name: str) -> None:
    """Raise InputError for a name that no adapter may have."""
    if not _NAME.fullmatch(name) or name == NO_ADAPTER:
        raise InputError(f"{name!r} cannot name an adapter: use letters, digits, dots, dashes, and not {NO_ADAPTER!r}")


def copy_adapter(found: PeftAdapter, folder: Path, root: Path, name: str) -> AdapterEntry:
    """Copy what PEFT saved in `folder`, and was read from there, into the pack at `root`; return its entry."""
    names = {kind: f"{ADAPTERS}/{name}/{kind}" for kind in (CONFIG, WEIGHTS)}
    (root / ADAPTERS / name).mkdir(parents=True)
    for kind, listed in names.items():
        shutil.copyfile(folder / kind, root / listed)
    return AdapterEntry(
        names[WEIGHTS],
        role=_ROLE,
        rank=found.rank,
        alpha=found.alpha,
        modules=found.modules,
        invocation=found.invocation,
        config=names[CONFIG],
    )


def remove_adapter(root: Path, name: str) -> AdapterEntry:
    """Take an adapter out of a pack. Raises InputError where it has none of this name, else as `add_adapter`."""
    with changing(root):
        manifest = _own_manifest(root)
        entry = manifest.adapters.get(name)
        if entry is None:
            known = ", ".join(manifest.adapters) or "none"
            raise InputError(f"the pack has no adapter {name!r}; it has: {known}")
        gone = tuple(each for each in (entry.file, entry.config) if each)
        _replace(root, name, None, listed={}, gone=gone)
        for each in gone:
            if each in manifest.files:  # else it stays where it was imported from
                with suppress(OSError):
                    (root / each).unlink()
        for folder in (root / ADAPTERS / name, root / ADAPTERS):
            with suppress(OSError):  # it holds others
                folder.rmdir()
    return entry


def _own_manifest(root: Path) -> Manifest:
    if is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded, and the next download would undo a change: copy it elsewhere first"
        )
    manifest = Manifest.load(root)
    if not os.access(root, os.W_OK) or not os.access(root / MANIFEST_NAME, os.W_OK):
        raise ManifestError(f"{root} cannot be written: copy the pack elsewhere and change the copy")
    return manifest


def _check_fits(found: PeftAdapter, manifest: Manifest, root: Path) -> None:
    """Raise CapabilityError or InputError where the target's graphs do not take the adapter."""
    target = manifest.located(_ROLE)
    if beyond := [token for token in found.invocation if token >= manifest.vocabulary_size]:
        raise InputError(
            f"the adapter is activated by the token {beyond[0]}, the pack's tokenizer has {manifest.vocabulary_size}: "
            f"it is for another model"
        )
    projections, rank, modules = _products(target, root)
    Projections(
        projections,
        name=f"the pack's {_ROLE}",
        rank=rank,
        modules=modules,
        kv_width=target.kv_heads * target.head_size,
        hint="the adapter is of another model, or the pack must be exported with --lora-modules",
    ).sort(found.matrices())


def _products(target: ModelEntry, root: Path) -> tuple[list[Projection], int, tuple[str, ...]]:
    """Return the products that take an adapter, its largest rank, and the projections' names as PEFT has them."""
    for graph in target.graphs.values():
        if "lora" in graph.capabilities:
            tensors = GraphFile.parse((root / graph.file).read_bytes()).initializers
            shapes = {name: tensor.dims for name, tensor in tensors.items()}
            return list(graph_projections(shapes)), graph.lora_rank, graph.lora_modules
    if target.gguf:
        found = list(lora_projections(read_header(root / target.gguf)))
        return found, target.hidden_size, tuple(sorted({each.module for each in found}))
    raise CapabilityError("the pack's target takes no adapters: export it again with --graphs base,lora")


def _replace(
    root: Path, name: str, entry: Mapping[str, object] | None, *, listed: Mapping[str, object], gone: tuple[str, ...]
) -> None:
    """Write the manifest with this entry, or without one; keys that only a newer version knows stay."""
    value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    adapters = {each: kept for each, kept in (value.get("adapters") or {}).items() if each != name}
    value["adapters"] = adapters if entry is None else {**adapters, name: entry}
    kept = {each: file for each, file in value["files"].items() if each not in gone}
    value["files"] = dict(sorted({**kept, **listed}.items()))
    if value.get("outside"):
        value["outside"] = {each: file for each, file in value["outside"].items() if each not in gone}
    replace_manifest(root, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
