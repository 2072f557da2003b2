"""One role's model during its export: a folder laid out as in a pack, and a record of the finished steps.

A step is finished once its files are on disk and the record, written atomically, lists their sizes and digests.
Unrecorded files are removed. A unit interrupted by a kill, a crash or a full disk is resumed or rebuilt.
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
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.integrity import file_entry, file_sha256
from edgedecode.pack.manifest import ModelEntry
from edgedecode.typed_json import JsonValue, typed

from ..stages import Stages

_RECORD = "finished.json"


@dataclass(frozen=True, slots=True)
class _Body:
    """The record without its digest."""

    key: str
    files: Mapping[str, FileEntry]
    steps: Mapping[str, ModelEntry]


class Unit:
    """A role's model; its files are in the subfolder of `folder` named after the role."""

    def __init__(self, folder: Path, role: str, *, key: str, kept: bool) -> None:
        """Set up the unit without reading its record. `kept` False: directly in a new pack, without a record."""
        self.folder = folder
        self.role = role
        self.key = key
        self._kept = kept
        self._files: dict[str, FileEntry] = {}
        self._steps: dict[str, ModelEntry] = {}

    def resume(self, stages: Stages) -> None:
        """Load the finished steps and verify their files; remove what is unfinished or damaged."""
        if self._kept and self._read():
            with stages.stage(f"{self.role}: {', '.join(self._steps)} from the cache", self._nbytes) as advance:
                if not all(self._intact(name, entry, advance) for name, entry in self._files.items()):
                    self._files, self._steps = {}, {}
        self.clear()
        (self.folder / self.role).mkdir(parents=True, exist_ok=True)

    @property
    def steps(self) -> tuple[str, ...]:
        """The finished steps that a later run can resume from."""
        return tuple(self._steps) if self._kept else ()

    def finished(self, step: str) -> ModelEntry | None:
        """Return the entry as of the end of `step`; None if the step is not finished."""
        return self._steps.get(step)

    def finish(self, step: str, entry: ModelEntry) -> ModelEntry:
        """Record `step` as finished, with the role's current files and `entry`; return `entry`."""
        steps, files = {**self._steps, step: entry}, dict(self._files)
        if self._kept:
            found = {path.relative_to(self.folder).as_posix(): path for path in self._present()}
            files |= {name: file_entry(path, flushed=True) for name, path in found.items() if name not in files}
            self._write(files, steps)
        self._files, self._steps = files, steps
        return entry

    @contextmanager
    def making(self) -> Iterator[None]:
        """Wrap the steps: a failed check removes the unit, so that no run resumes from wrong files.

        Raises ExportError if the cache's disk fails; steps finished before are kept.
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
                f"{what} the cache {self.folder.parent} could not be written: free some space and start again, set "
                f"EDGEDECODE_CACHE to another disk, or give --no-cache; only finished steps were kept"
            ) from error

    def deliver(self, pack: Path) -> None:
        """Put the finished files into `pack`, as hard links on the same disk, else as copies."""
        if not self._kept:
            return
        (pack / self.role).mkdir()
        for name in self._files:
            _link_or_copy(self.folder / name, pack / name)

    def clear(self) -> None:
        """Remove unrecorded files, or the entire unit if no step is recorded."""
        if not self._kept:
            return
        if not self._steps:
            self.discard()
            return
        for folder in self.folder.iterdir():  # temporary folders of a killed step
            if folder.is_dir() and folder.name != self.role:
                shutil.rmtree(folder, ignore_errors=True)
        for path in self._present():
            if path.relative_to(self.folder).as_posix() not in self._files:
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything, the record first, so that a partial removal is not mistaken for a valid unit."""
        self._files, self._steps = {}, {}
        if self._kept:
            (self.folder / _RECORD).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._files.values())

    def _present(self) -> list[Path]:
        return sorted(path for path in (self.folder / self.role).rglob("*") if path.is_file())

    def _intact(self, name: str, entry: FileEntry, progress: Callable[[int], None]) -> bool:
        path = self.folder / name
        with suppress(OSError, ManifestError):
            return path.stat().st_size == entry.nbytes and file_sha256(path, progress=progress) == entry.sha256
        return False

    def _read(self) -> bool:
        """Load the record; return whether it exists, is intact and has this unit's key."""
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
    except OSError:  # another disk, or a file system without hard links
        shutil.copyfile(path, place)


def _digest(body: JsonValue) -> str:
    return facts_key(json.dumps(body, sort_keys=True))
