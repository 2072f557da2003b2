"""Changes a pack's static graphs atomically: the manifest either names the new files, which exist, or the old ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.pack.entries import NPU_FOLDER
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Graph, Manifest
from edgedecode.pack.pack_lock import changing, commit, remove_files, replace_manifest
from edgedecode.pack.static_graphs import STATIC

__all__ = ["check_changeable", "check_room", "save_static", "take_out_static"]


def check_changeable(root: Path, manifest: Manifest) -> None:
    """Raise ManifestError if the pack was downloaded, is read-only, or keeps its weights elsewhere."""
    if is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded, and the next download would undo a change: copy it elsewhere first"
        )
    if closed := [
        place for place in (root, root / MANIFEST_NAME, root.resolve().parent) if not os.access(place, os.W_OK)
    ]:
        raise ManifestError(f"{closed[0]} cannot be written: copy the pack elsewhere and compile the copy")
    if outside := [entry.weights for entry in manifest.models.values() if entry.weights in manifest.outside]:
        raise ManifestError(f"the pack uses {outside[0]} in place: import it again with --copy, then compile it")


def check_room(root: Path, manifest: Manifest, *, copies: int) -> None:
    """Raise ManifestError if the disk has no room for so many compiled copies of every model."""
    graphs = sum(name in entry.graphs for entry in manifest.models.values() for name in ("base", "lora"))
    weights = sum(manifest.weights_nbytes(role) for role in manifest.models)
    needed = copies * weights * graphs // len(manifest.models) * 5 // 4
    if (free := shutil.disk_usage(root).free) < needed:
        raise ManifestError(
            f"the compiled graphs need about {needed / 1e6:.0f} MB, {root} has {free / 1e6:.0f} MB left: make room, or "
            f"give fewer chips or widths"
        )


def save_static(root: Path, work: Path, graphs: Mapping[str, Mapping[str, Graph]]) -> None:
    """Move the files of `graphs`, by role and name, from the folder `work` into the pack, and name them there."""
    names = [name for found in graphs.values() for graph in found.values() for name in graph.files]
    with changing(root):
        value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))  # not through Manifest: newer keys stay
        for role, found in graphs.items():
            value["models"][role]["graphs"] |= {name: asdict(graph) for name, graph in found.items()}
        added = {name: asdict(file_entry(work / name, flushed=True)) for name in names}
        value["files"] = dict(sorted((value["files"] | added).items()))
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        Manifest.from_json(json.loads(text))
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        commit(root, text, moves={work / name: root / name for name in names})


def take_out_static(root: Path) -> list[str]:
    """Remove a pack's static graphs and what was compiled from them; return the names of the files."""
    with changing(root):
        value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
        gone: list[str] = []
        for role, entry in Manifest.load(root).models.items():
            for name, graph in entry.graphs.items():
                if STATIC in graph.capabilities:
                    gone += graph.files
                    del value["models"][role]["graphs"][name]
        if not gone:
            return []
        value["files"] = {name: listed for name, listed in value["files"].items() if name not in gone}
        replace_manifest(root, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        remove_files(root, gone)
        folders = {(root / name).parent for name in gone if name.startswith(f"{NPU_FOLDER}/")}
        for folder in [*sorted(folders), root / NPU_FOLDER]:
            with suppress(OSError):  # not empty, or in use
                folder.rmdir()
        return gone
