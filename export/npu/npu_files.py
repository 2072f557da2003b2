"""Changes a pack's static graphs atomically: the manifest either names the new files, which exist, or the old ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from edgedecode.errors import ManifestError
from edgedecode.pack.entries import NPU_FOLDER, STATIC_PREFIX, CompiledEntry
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Graph, Manifest
from edgedecode.pack.pack_lock import changing, commit, remove_files, replace_manifest
from edgedecode.pack.static_graphs import STATIC

Untyped: TypeAlias = Any


def static_graphs(manifest: Manifest) -> list[tuple[str, str, Graph]]:
    """Return a pack's static graphs, each with its role and name."""
    return [
        (role, name, graph)
        for role, entry in manifest.models.items()
        for name, graph in entry.graphs.items()
        if STATIC in graph.capabilities
    ]


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


def replace_static(root: Path, work: Path, graphs: Mapping[str, Mapping[str, Graph]]) -> None:
    """Move the files of `graphs`, by role and name, from the folder `work` into the pack, in place of the earlier ones.

    An interruption leaves the old or the new graphs: new files have unused names until the manifest names them.
    """
    with changing(root):
        value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))  # not through Manifest: newer keys stay
        _take_out(value, Manifest.from_json(value))
        moves: dict[Path, Path] = {}
        for role, found in graphs.items():
            for name, graph in found.items():
                final = _renamed(graph, root)
                value["models"][role]["graphs"][name] = asdict(final)
                for old, new in zip(graph.files, final.files, strict=True):
                    moves[work / old] = root / new
                    value["files"][new] = asdict(file_entry(work / old, flushed=True))
        value["files"] = dict(sorted(value["files"].items()))
        try:
            for place in moves.values():
                place.parent.mkdir(parents=True, exist_ok=True)
            commit(root, _text(value), moves=moves)
        finally:
            _remove_unused(root)


def take_out_static(root: Path) -> list[str]:
    """Remove a pack's static graphs and what was compiled from them; return the names of the files."""
    with changing(root):
        value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
        gone = _take_out(value, Manifest.load(root))
        if gone:
            replace_manifest(root, _text(value))
            _remove_unused(root)
        return gone


def _take_out(value: Untyped, manifest: Manifest) -> list[str]:
    """Remove the static graphs and their files from a manifest's JSON value; return the files' names."""
    gone: list[str] = []
    for role, name, graph in static_graphs(manifest):
        gone += graph.files
        del value["models"][role]["graphs"][name]
    value["files"] = {name: listed for name, listed in value["files"].items() if name not in gone}
    return gone


def _renamed(graph: Graph, root: Path) -> Graph:
    """Return the graph with names that the pack does not use: its file's, and its binaries' folders'."""
    file = PurePosixPath(graph.file)
    return replace(
        graph,
        file=_unused(root, file.parent, file.stem, file.suffix),
        compiled=tuple(_moved(each, root) for each in graph.compiled),
    )


def _moved(compiled: CompiledEntry, root: Path) -> CompiledEntry:
    """Return the entry in an unused folder. The files keep their names, by which one names the other."""
    file, binary = PurePosixPath(compiled.file), PurePosixPath(compiled.binary)
    folder = _unused(root, file.parent.parent, file.parent.name)
    return replace(compiled, file=f"{folder}/{file.name}", binary=f"{folder}/{binary.name}")


def _unused(root: Path, folder: PurePosixPath, stem: str, suffix: str = "") -> str:
    names = (f"{folder}/{stem}{'' if number == 1 else f'-{number}'}{suffix}" for number in count(1))
    return next(name for name in names if not (root / name).exists())


def _remove_unused(root: Path) -> None:
    """Remove the files of static graphs that a locked pack's manifest does not name, also those of a crashed run."""
    manifest = Manifest.load(root)
    folders = {
        (root / entry.graphs["base"].file).parent for entry in manifest.models.values() if "base" in entry.graphs
    }
    found = [path for folder in folders for path in folder.glob(f"{STATIC_PREFIX}*.onnx")]
    found += [path for path in (root / NPU_FOLDER).rglob("*") if not path.is_dir()]
    names = {path.relative_to(root).as_posix() for path in found} - manifest.named()
    remove_files(root, sorted(names))
    for place in [*(root / NPU_FOLDER).glob("*/"), root / NPU_FOLDER]:
        with suppress(OSError):  # not empty, or in use
            place.rmdir()


def _text(value: Untyped) -> str:
    """Return the manifest's text. Raises ManifestError if it is not valid."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    Manifest.from_json(json.loads(text))
    return text
