"""One role's model while it is made: a folder laid out as in a pack, and a record of the steps that are whole.

A step counts once its files are on disk and its record, written in one piece, says so with sizes and digests; whatever
no record names is removed. A unit that a kill, a crash or a full disk interrupted is resumed or rebuilt.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedecode.cache import aside, facts_key
from edgedecode.errors import EdgeDecodeError, ExportError, ManifestError
from edgedecode.pack.integrity import file_entry, file_sha256
from edgedecode.pack.manifest import FileEntry, ModelEntry
from edgedecode.typed_json import JsonValue, typed

from ..stages import Stages

__all__ = ["Unit"]

_RECORD = "finished.json"


@dataclass(frozen=True, slots=True)
class _Body:
    """What the record says, beside its digest."""

    key: str
    files: Mapping[str, FileEntry]
    steps: Mapping[str, ModelEntry]


class Unit:
    """A role's model in `folder`, whose subfolder named after the role holds its files."""

    def __init__(self, folder: Path, role: str, *, key: str, kept: bool) -> None:
        """Open it; `kept` False: in a new pack, with nothing recorded. Nothing is read before `resume`."""
        self.folder = folder
        self.role = role
        self.key = key
        self._kept = kept
        self._files: dict[str, FileEntry] = {}
        self._steps: dict[str, ModelEntry] = {}

    def resume(self, stages: Stages) -> None:
        """Find the finished steps and check their files; what is unfinished or damaged is removed."""
        if self._kept and self._read():
            with stages.stage(f"{self.role}: {', '.join(self._steps)} from the cache", self._nbytes) as advance:
                if not all(self._sound(name, entry, advance) for name, entry in self._files.items()):
                    self._files, self._steps = {}, {}
        self.clear()
        (self.folder / self.role).mkdir(parents=True, exist_ok=True)

    @property
    def steps(self) -> tuple[str, ...]:
        """The finished steps that a later run would find."""
        return tuple(self._steps) if self._kept else ()

    def finished(self, step: str) -> ModelEntry | None:
        """Return the entry as it was when `step` ended; None where it has to be done."""
        return self._steps.get(step)

    def finish(self, step: str, entry: ModelEntry) -> ModelEntry:
        """Record that `step` is whole: the role's files as they lie there now, and the entry, which is returned."""
        steps, files = {**self._steps, step: entry}, dict(self._files)
        if self._kept:
            found = {path.relative_to(self.folder).as_posix(): path for path in self._present()}
            files |= {name: file_entry(path, flushed=True) for name, path in found.items() if name not in files}
            self._write(files, steps)
        self._files, self._steps = files, steps
        return entry

    @contextmanager
    def making(self) -> Iterator[None]:
        """Hold while steps are done: a refusal removes the unit, so that nothing wrong is ever gone on with.

        Raises ExportError where the cache's disk fails; what was finished before stays.
        """
        try:
            yield
        except EdgeDecodeError:
            self.discard()
            raise
        except OSError as error:
            if not self._kept:
                raise
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "the disk became full while" if full else f"{error.strerror or error}:"
            raise ExportError(
                f"{what} the cache {self.folder.parent} could not be written: make room and start again, set "
                f"EDGEDECODE_CACHE to another disk, or give --no-cache; nothing was left but finished steps"
            ) from error

    def deliver(self, pack: Path) -> None:
        """Put the finished files into `pack`: as second links where the disk is the same, else as copies."""
        if not self._kept:
            return
        (pack / self.role).mkdir()
        for name in self._files:
            _link_or_copy(self.folder / name, pack / name)

    def clear(self) -> None:
        """Remove what no record speaks of, and the whole unit where nothing is recorded."""
        if not self._kept:
            return
        if not self._steps:
            self.discard()
            return
        for folder in self.folder.iterdir():  # what a killed step left beside the role's
            if folder.is_dir() and folder.name != self.role:
                shutil.rmtree(folder, ignore_errors=True)
        for path in self._present():
            if path.relative_to(self.folder).as_posix() not in self._files:
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything, the record first, so that half a removal cannot be taken for a unit."""
        self._files, self._steps = {}, {}
        if self._kept:
            (self.folder / _RECORD).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._files.values())

    def _present(self) -> list[Path]:
        return sorted(path for path in (self.folder / self.role).rglob("*") if path.is_file())

    def _sound(self, name: str, entry: FileEntry, progress: Callable[[int], None]) -> bool:
        path = self.folder / name
        with suppress(OSError, ManifestError):
            return path.stat().st_size == entry.nbytes and file_sha256(path, progress=progress) == entry.sha256
        return False

    def _read(self) -> bool:
        """Load the record; say whether it is there, whole, and of this key."""
        with suppress(OSError, ValueError, KeyError, TypeError, ManifestError, RecursionError):
            value = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
            if value["sha256"] != _digest(value["body"]):
                return False
            body = typed(value["body"], _Body, _RECORD)
            if body.key != self.key:
                return False
            self._files, self._steps = dict(body.files), dict(body.steps)
            return True
        return False

    def _write(self, files: Mapping[str, FileEntry], steps: Mapping[str, ModelEntry]) -> None:
        body: JsonValue = asdict(_Body(self.key, files, steps))
        with aside(self.folder / _RECORD) as fresh, fresh.open("w", encoding="utf-8") as file:
            json.dump({"sha256": _digest(body), "body": body}, file)
            file.flush()
            os.fsync(file.fileno())


def _link_or_copy(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, place)


def _digest(body: JsonValue) -> str:
    return facts_key(json.dumps(body, sort_keys=True))
