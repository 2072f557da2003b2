"""Replaces a pack's trim atomically: writes the new files, renames the manifest into place, removes the old files.

After any interruption the pack is either the old or the new one. Unfinished files have names that begin with a dot,
which `verify` ignores. The pack is locked only while it changes, so two trims may run at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time

from edgedecode.cache import MAKING
from edgedecode.errors import ManifestError
from edgedecode.locks import take_lock
from edgedecode.pack.entries import TRIM_NAMES, TrimEntry
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Graph, Manifest, ModelEntry
from edgedecode.pack.pack_lock import changing, commit, remove_files, replace_manifest

HEADS = "heads"
"""The name of the graph with both heads."""
_ROLE = "draft"
_STEMS = {"heads": "onnx", "trim": "ids", "gguf": "gguf"}
_WORK = re.compile(rf"\.trim-(?P<run>\w+)(-\d+\.\w+(\.[0-9a-f]+{MAKING})?|\.lock)")
"""Temporary files of a run, complete or being written, and its lock file, which is locked while the run is alive."""
_GRAPH_NBYTES = 1 << 20
"""Estimated size of the graph without its head."""
_STALE_SECONDS = 24 * 3600
"""On file systems without locks, files unchanged for longer are taken for a crashed run's."""


@dataclass(slots=True)
class Workplace:
    """Temporary files of a trim, in the folder of the draft's graphs, because a graph looks there for its weights."""

    root: Path
    folder: str
    run: str
    """Part of every file name, unique to this run."""
    made: list[Path] = field(default_factory=list)

    def path(self, kind: str) -> Path:
        """Return a new name for a file of this kind: heads, trim or gguf."""
        path = self.root / self.folder / f".trim-{self.run}-{len(self.made)}.{_STEMS[kind]}"
        self.made.append(path)
        return path

    def name(self, path: Path) -> str:
        """Return a file's name as in a manifest."""
        return path.relative_to(self.root).as_posix()

    def remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


@contextmanager
def workplace(root: Path, manifest: Manifest) -> Iterator[Workplace]:
    """Yield a place for temporary files, which are removed at the end; also remove those of crashed runs."""
    folder = root / _folder(manifest.models[_ROLE])
    with ExitStack() as stack:
        with changing(root):
            folder.mkdir(exist_ok=True)
            _remove_abandoned(root, folder)
            handle, name = tempfile.mkstemp(prefix=".trim-", suffix=".lock", dir=folder)
            os.close(handle)
            stack.callback(Path(name).unlink, missing_ok=True)
            with suppress(OSError):  # a file system without locks: the age of the files decides
                if (lock := take_lock(Path(name))) is not None:
                    stack.enter_context(lock)
        found = _WORK.fullmatch(Path(name).name)
        assert found is not None
        place = Workplace(root, folder.relative_to(root).as_posix(), found["run"])
        stack.callback(lambda: place.remove(place.made))
        yield place


def check_writable(root: Path, manifest: Manifest) -> None:
    """Raise ManifestError if the pack was downloaded or is read-only."""
    if is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded, and the next download would undo a trim: copy it elsewhere first"
        )
    folder = root / _folder(manifest.models[_ROLE])
    places = (root, root / MANIFEST_NAME, *([folder] if folder.is_dir() else []))
    if closed := [place for place in places if not os.access(place, os.W_OK)]:
        raise ManifestError(f"{closed[0]} cannot be written: copy the pack elsewhere and trim the copy")


def check_room(root: Path, manifest: Manifest, *, size: int) -> None:
    """Raise ManifestError if the disk has no room for heads of `size` ids; called before anything is measured."""
    draft = manifest.models[_ROLE]
    row_nbytes = draft.hidden_size * draft.head_bits // 8 + 4 * draft.hidden_size // (draft.block_size or 32) + 4
    needed = size * row_nbytes + _GRAPH_NBYTES
    if draft.gguf in manifest.files:
        needed += manifest.files[draft.gguf].nbytes
    try:
        free = shutil.disk_usage(root).free
        with tempfile.TemporaryFile(dir=root / _folder(draft)) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        raise ManifestError(
            f"{root} cannot be written ({error.strerror or error}): make room, or trim a copy elsewhere"
        ) from None
    if free < needed:
        raise ManifestError(
            f"heads of {size} ids need about {needed / 1e6:.1f} MB and {root} has {free / 1e6:.1f} MB left: make room, "
            f"or give a smaller --size"
        )


def save_trim(place: Workplace, *, graph: Graph | None, entry: TrimEntry) -> Manifest:
    """Replace the pack's trim by files of `place`; return the new manifest.

    graph, entry: the manifest's entries, with the file names in `place`. No graph: the pack holds the draft as GGUF.
    Raises ManifestError or OSError and leaves the pack unchanged.
    """
    with changing(place.root):
        old = Manifest.load(place.root)
        moves: dict[Path, str] = {}

        def placed(kind: str, name: str) -> str:
            final = next(free for each in TRIM_NAMES[kind] if (free := f"{place.folder}/{each}") not in old.files)
            moves[place.root / name] = final
            return final

        if graph is not None:
            graph = replace(graph, file=placed("heads", graph.file))
        gguf = placed("gguf", entry.gguf) if entry.gguf else ""
        entry = replace(entry, token_ids=placed("trim", entry.token_ids), gguf=gguf)
        return _change(place.root, old, graph=graph, entry=entry, moves=moves)


def save_entry(root: Path, entry: TrimEntry, *, measured: TrimEntry) -> None:
    """Replace the manifest's entry of the pack's trim; its files stay.

    Raises ManifestError if the pack's trim is no longer the `measured` one, or OSError; the pack is then unchanged.
    """
    with changing(root):
        if Manifest.load(root).models[_ROLE].trim != measured:
            raise ManifestError("the pack's trim was replaced or removed in the meantime")
        value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
        value["models"][_ROLE]["trim"] = asdict(entry)
        replace_manifest(root, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def remove_trim(root: Path) -> list[str]:
    """Remove a pack's trim; return the names of the removed files. Raises ManifestError or OSError."""
    with changing(root):
        old = Manifest.load(root)
        _change(root, old, graph=None, entry=None, moves={})
        return trim_files(old.models[_ROLE])


def trim_files(entry: ModelEntry) -> list[str]:
    """Return the names of the files of a model's trim; empty if it has none."""
    names = [graph.file for name, graph in entry.graphs.items() if name == HEADS]
    if entry.trim is not None:
        names += [entry.trim.token_ids, *([entry.trim.gguf] if entry.trim.gguf else [])]
    return names


def _change(
    root: Path, old: Manifest, *, graph: Graph | None, entry: TrimEntry | None, moves: Mapping[Path, str]
) -> Manifest:
    """Move the new files into place and write the manifest; then remove the old trim's files."""
    path = root / MANIFEST_NAME
    value = json.loads(path.read_text(encoding="utf-8"))  # not through Manifest, which drops keys of newer versions
    gone = trim_files(old.models[_ROLE])
    draft = value["models"][_ROLE]
    draft["graphs"].pop(HEADS, None)
    if graph is not None:
        draft["graphs"][HEADS] = asdict(graph)
    draft["trim"] = None if entry is None else asdict(entry)
    added = {name: asdict(file_entry(made, flushed=True)) for made, name in moves.items()}
    kept = {name: listed for name, listed in value["files"].items() if name not in gone}
    value["files"] = dict(sorted((kept | added).items()))
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    manifest = Manifest.from_json(json.loads(text))
    try:
        commit(root, text, moves={made: root / name for made, name in moves.items()})
    finally:
        if path.read_text(encoding="utf-8") == text:  # also after an interrupt right after the last rename
            remove_files(root, gone)
    return manifest


def _remove_abandoned(root: Path, folder: Path) -> None:
    """Remove files of crashed runs: temporary ones, and trim files that the manifest does not list."""
    runs: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if (found := _WORK.fullmatch(path.name)) is not None:
            runs.setdefault(found["run"], []).append(path)
    for run, left in runs.items():
        if not _may_be_alive(folder / f".trim-{run}.lock", left):
            for path in sorted(left, key=lambda path: path.suffix == ".lock"):  # the lock file last
                path.unlink(missing_ok=True)
    for path in root.glob(f"{MANIFEST_NAME}.*{MAKING}"):  # a manifest that was not renamed into place
        path.unlink(missing_ok=True)
    listed = Manifest.load(root).files
    for path in (folder / name for names in TRIM_NAMES.values() for name in names):
        if path.relative_to(root).as_posix() not in listed:
            path.unlink(missing_ok=True)


def _may_be_alive(lock_file: Path, files: Sequence[Path]) -> bool:
    """Return whether a run may be alive, judged by its lock or else by the age of its files."""
    with suppress(OSError):
        if lock_file.exists():
            if (lock := take_lock(lock_file)) is not None:
                lock.release()
            return lock is None
    with suppress(OSError):
        return time() - max(path.stat().st_mtime for path in files) < _STALE_SECONDS
    return True


def _folder(entry: ModelEntry) -> str:
    graph = next(iter(entry.graphs.values()), None)
    return _ROLE if graph is None else Path(graph.file).parent.as_posix()
