"""Changes a pack's static graphs."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path, PurePosixPath

from edgedecode.errors import ManifestError
from edgedecode.pack import new_folder
from edgedecode.pack.entries import NPU_FOLDER, STATIC, STATIC_PREFIX, CompiledEntry
from edgedecode.pack.manifest import Graph, Manifest
from edgedecode.pack.pack_change import PackChange, changed_pack, check_own


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
    check_own(root, "compile")
    if not os.access(root.resolve().parent, os.W_OK):
        raise ManifestError(f"{root.resolve().parent} cannot be written: copy the pack elsewhere and compile the copy")
    if outside := [entry.weights for entry in manifest.models.values() if entry.weights in manifest.outside]:
        raise ManifestError(f"the pack uses {outside[0]} in place: import it again with --copy, then compile it")


def check_room(root: Path, manifest: Manifest, *, copies: int) -> None:
    """Raise ExportError if the disk has no room for this number of compiled copies of each model."""
    graphs = sum(name in entry.graphs for entry in manifest.models.values() for name in ("base", "lora"))
    weights = sum(manifest.weights_nbytes(role) for role in manifest.models)
    new_folder.check_room(
        root, copies * weights * graphs // len(manifest.models) * 5 // 4, remedy="give fewer chips or widths"
    )


def replace_static(root: Path, work: Path, graphs: Mapping[str, Mapping[str, Graph]]) -> None:
    """Move the files of `graphs`, by role and name, from the folder `work` into the pack, in place of the earlier ones.

    New files have names that no file of the pack has, so that the earlier graphs stay whole until the end.
    """
    with changed_pack(root) as change:
        _take_out(change)
        made = [(role, name, graph, _renamed(graph, root)) for role in graphs for name, graph in graphs[role].items()]
        for role, name, graph, final in made:
            change.value["models"][role]["graphs"][name] = asdict(final)
            for old, new in zip(graph.files, final.files, strict=True):
                (work / old).replace(change.place(new))


def take_out_static(root: Path) -> list[str]:
    """Remove a pack's static graphs and what was compiled from them; return the names of the files."""
    with changed_pack(root) as change:
        return _take_out(change)


def _take_out(change: PackChange) -> list[str]:
    """Take out the static graphs and their files, and what a killed run left; return the names of the former."""
    graphs = static_graphs(change.manifest)
    for role, name, _ in graphs:
        del change.value["models"][role]["graphs"][name]
    gone = [file for _, _, graph in graphs for file in graph.files]
    change.remove([*gone, *_unnamed(change)])
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


def _unnamed(change: PackChange) -> set[str]:
    """Return the files of static graphs that the manifest does not name."""
    root, manifest = change.root, change.manifest
    folders = {
        (root / entry.graphs["base"].file).parent for entry in manifest.models.values() if "base" in entry.graphs
    }
    found = [path for folder in folders for path in folder.glob(f"{STATIC_PREFIX}*.onnx")]
    found += [path for path in (root / NPU_FOLDER).rglob("*") if not path.is_dir()]
    return {path.relative_to(root).as_posix() for path in found} - manifest.named()
