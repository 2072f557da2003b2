"""Changes a pack's trim: new files beside the old ones, then the manifest by one rename, then the old files go.

Whatever interrupts it, the pack is the old one or the new one. While it is made, a file's name begins with a dot, which
a pack's check passes over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from edgedecode.digests import file_sha256
from edgedecode.errors import ManifestError
from edgedecode.hub import is_downloaded
from edgedecode.manifest import MANIFEST_NAME, FileEntry, Graph, Manifest, ModelEntry, TrimEntry
from edgedecode.new_folder import process_runs

__all__ = ["HEADS", "Workplace", "check_writable", "remove_trim", "save_entry", "save_trim", "trim_files", "workplace"]

HEADS = "heads"
"""The name of the graph that has the further heads."""
_ROLE = "draft"
_STEMS = {"heads": "onnx", "trim": "ids", "gguf": "gguf"}
_NAMES = {
    "heads": ("heads.onnx", "heads-2.onnx"),
    "trim": ("trim.ids", "trim-2.ids"),
    "gguf": ("trim.gguf", "trim-2.gguf"),
}
"""Each file has two names: what replaces a file never has its name, so that both can lie there for a moment."""
_WORK = re.compile(
    r"\.trim-(?P<process>\d+)-[^.]+\.\w+"  # a file of a workplace
    r"|\.\.trim-\d+-[^.]+\.\w+\.(?P<cutter>\d+)"  # the same while it is written, as `trim_gguf` names it
    rf"|\.{re.escape(MANIFEST_NAME)}\.(?P<writer>\d+)"  # a manifest that was not put in place yet
)


@dataclass(slots=True)
class Workplace:
    """Where files of a trim are made: beside the draft's graphs, since a graph finds its weights in its own folder."""

    root: Path
    folder: str
    made: list[Path] = field(default_factory=list)

    def path(self, kind: str) -> Path:
        """Return a new name for a file of this kind: heads, trim or gguf."""
        path = self.root / self.folder / f".trim-{os.getpid()}-{len(self.made)}.{_STEMS[kind]}"
        self.made.append(path)
        return path

    def name(self, path: Path) -> str:
        """Return a file's name as a manifest has it."""
        return path.relative_to(self.root).as_posix()

    def remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


@contextmanager
def workplace(root: Path, manifest: Manifest) -> Iterator[Workplace]:
    """Give a place to make files in; what is still there at the end is removed, and so is what a killed run left."""
    place = Workplace(root, _folder(manifest.models[_ROLE]))
    (root / place.folder).mkdir(exist_ok=True)
    _remove_abandoned(place)
    try:
        yield place
    finally:
        place.remove(place.made)


def check_writable(root: Path, manifest: Manifest) -> None:
    """Raise ManifestError where the pack is not the user's own to change."""
    if is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded, and the next download would undo a trim: copy it elsewhere first"
        )
    folder = root / _folder(manifest.models[_ROLE])
    places = (root, root / MANIFEST_NAME, *([folder] if folder.is_dir() else []))
    if closed := [place for place in places if not os.access(place, os.W_OK)]:
        raise ManifestError(f"{closed[0]} cannot be written: copy the pack elsewhere and trim the copy")


def save_trim(place: Workplace, *, graph: Graph | None, entry: TrimEntry | None) -> Manifest:
    """Put made files into the pack in the place of its former trim, and return the manifest as it is then.

    graph, entry: as the manifest shall have them, but with the names of files in `place`; None: there is none. Raises
    ManifestError or OSError, and then the pack is as it was.
    """
    old = Manifest.load(place.root)
    moves: dict[Path, str] = {}

    def placed(kind: str, name: str) -> str:
        final = next(free for each in _NAMES[kind] if (free := f"{place.folder}/{each}") not in old.files)
        moves[place.root / name] = final
        return final

    if graph is not None:
        graph = replace(graph, file=placed("heads", graph.file))
    if entry is not None:
        gguf = placed("gguf", entry.gguf) if entry.gguf else ""
        entry = replace(entry, token_ids=placed("trim", entry.token_ids), gguf=gguf)
    return _change(place.root, old, graph=graph, entry=entry, moves=moves)


def save_entry(root: Path, entry: TrimEntry) -> None:
    """Let the manifest say this of the trim that the pack has; its files stay. Raises OSError."""
    path = root / MANIFEST_NAME
    value = json.loads(path.read_text(encoding="utf-8"))
    value["models"][_ROLE]["trim"] = asdict(entry)
    _commit(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", moves={})


def remove_trim(root: Path) -> Manifest:
    """Take a pack's trim out: the further heads, the map, their files. Raises ManifestError or OSError."""
    return _change(root, Manifest.load(root), graph=None, entry=None, moves={})


def trim_files(entry: ModelEntry) -> list[str]:
    """Return the names of the files that a model's trim consists of; empty: it has none."""
    names = [graph.file for name, graph in entry.graphs.items() if name == HEADS]
    if entry.trim is not None:
        names += [entry.trim.token_ids, *([entry.trim.gguf] if entry.trim.gguf else [])]
    return names


def _change(
    root: Path, old: Manifest, *, graph: Graph | None, entry: TrimEntry | None, moves: Mapping[Path, str]
) -> Manifest:
    """Move the made files to their names and write the manifest; then the old trim's files are nobody's any more."""
    path = root / MANIFEST_NAME
    value = json.loads(path.read_text(encoding="utf-8"))  # as it stands: keys that only a newer version knows stay
    gone = trim_files(old.models[_ROLE])
    draft = value["models"][_ROLE]
    draft["graphs"].pop(HEADS, None)
    if graph is not None:
        draft["graphs"][HEADS] = asdict(graph)
    draft["trim"] = None if entry is None else asdict(entry)
    added = {name: asdict(_file_entry(made)) for made, name in moves.items()}
    kept = {name: listed for name, listed in value["files"].items() if name not in gone}
    value["files"] = dict(sorted((kept | added).items()))
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    manifest = Manifest.from_json(json.loads(text))
    try:
        _commit(path, text, moves={made: root / name for made, name in moves.items()})
    finally:
        if path.read_text(encoding="utf-8") == text:  # also where an interrupt came right behind the last rename
            _remove(root, gone)
    return manifest


def _commit(path: Path, text: str, *, moves: Mapping[Path, Path]) -> None:
    """Move files, then the manifest; if anything comes between, take back what the manifest does not name yet."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        for made, final in moves.items():
            made.replace(final)
        fresh.replace(path)
    except BaseException:
        if path.read_text(encoding="utf-8") != text:
            for final in moves.values():
                final.unlink(missing_ok=True)
        raise
    finally:
        fresh.unlink(missing_ok=True)


def _remove(root: Path, names: Sequence[str]) -> None:
    for name in names:
        with suppress(OSError):  # the next trim removes it
            (root / name).unlink(missing_ok=True)


def _file_entry(path: Path) -> FileEntry:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return FileEntry(nbytes=path.stat().st_size, sha256=file_sha256(path))


def _remove_abandoned(place: Workplace) -> None:
    """Remove what a killed run left: its unfinished files, and those that it had named but no manifest lists."""
    for path in (*place.root.iterdir(), *(place.root / place.folder).iterdir()):
        found = _WORK.fullmatch(path.name)
        if found is not None and not process_runs(int(found[str(found.lastgroup)])):
            path.unlink(missing_ok=True)
    listed = Manifest.load(place.root).files  # as it is now: another process may have finished a trim meanwhile
    for name in (f"{place.folder}/{name}" for names in _NAMES.values() for name in names):
        if name not in listed:
            (place.root / name).unlink(missing_ok=True)


def _folder(entry: ModelEntry) -> str:
    graph = next(iter(entry.graphs.values()), None)
    return _ROLE if graph is None else Path(graph.file).parent.as_posix()
