"""What exports have finished, kept in the user's cache by digest, so that a rerun goes on where the last one stopped.

A cache is never needed: without a folder, without file locks, without room or beside another export of the same model,
a unit lies in the new pack itself and is simply not kept. Its key is a digest of everything that determines the files
and numbers of a job: texts count with their content; weights, which may be many gigabytes, with their headers, sizes,
times and inodes, and those of the hub with the commit. What a job or a recipe gains later counts by itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import edgedecode
from edgedecode.cache import cache_folder, facts_key, user_cache
from edgedecode.locks import take_lock
from edgedecode.typed_json import JsonValue

from ..base_model import Source
from ..job import ModelJob
from .finished_steps import Unit

__all__ = ["Kept", "canonical", "job_key", "kept_units"]

_log = logging.getLogger(__name__)

_OLDEST_SECONDS = 14 * 24 * 3600
_LARGEST_NBYTES = 8 << 30
_ROOM = 1.05
"""What a model may weigh beyond its forecast: graphs, and one of them once more for the checks."""
_PACKAGES = ("numpy", "onnx_ir", "onnxruntime", "onnxruntime-genai", "safetensors", "torch", "transformers")
_LARGEST_HEADER = 100 << 20


class Kept:
    """The units of one export. Holds the locks of those that lie in the cache until it is closed."""

    def __init__(self, folder: Path | None, locks: ExitStack) -> None:
        self._folder = folder
        self._locks = locks
        self._units: list[Unit] = []

    def unit(self, role: str, *, key: str, nbytes: int, pack: Path) -> Unit:
        """Open the unit of this key, about `nbytes` large: in the cache where that can be, else in `pack`."""
        place = self._place(key, role, nbytes)
        unit = Unit(pack if place is None else place, role, key=key, kept=place is not None)
        self._units.append(unit)
        return unit

    def forget(self) -> None:
        """Remove every unit: the pack that they were made for is in its place."""
        for unit in self._units:
            unit.discard()

    def clear(self) -> None:
        """Remove what is not finished, and say that the rest stays."""
        for unit in self._units:
            unit.clear()
        if whole := [f"{unit.role} ({', '.join(unit.steps)})" for unit in self._units if unit.steps]:
            _log.warning("finished and kept: %s; the same command again goes on from there", ", ".join(whole))

    def _place(self, key: str, role: str, nbytes: int) -> Path | None:
        if self._folder is None:
            return None
        if not _locked(self._folder / f"{key}.lock", self._locks):
            _log.warning("another export makes the same %s right now: this one's is not kept in the cache", role)
            return None
        place = self._folder / key
        held = _nbytes(place)
        _prune(self._folder, room=_LARGEST_NBYTES - nbytes)
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            os.utime(place)  # in use today
            if shutil.disk_usage(place).free + held >= nbytes * _ROOM:
                return place
        _log.warning("%s has no room for about %.0f MB: %s is not kept in the cache", self._folder, nbytes / 1e6, role)
        shutil.rmtree(place, ignore_errors=True)
        return None


@contextmanager
def kept_units(*, use: bool = True) -> Iterator[Kept]:
    """Give the cache for the time of an export. Leaving normally forgets its units, leaving otherwise keeps finished
    steps; `use` False keeps nothing.
    """
    with ExitStack() as locks:
        kept = Kept(_folder() if use else None, locks)
        try:
            yield kept
        except BaseException:
            kept.clear()
            raise
        kept.forget()


def _folder() -> Path | None:
    if sys.platform == "win32":  # no locks of this kind there
        return None
    folder = cache_folder("exports")
    if folder is None:
        _log.warning(
            "the cache %s cannot be written: an interrupted export would start from the beginning", user_cache()
        )
    return folder


def _locked(path: Path, locks: ExitStack) -> bool:
    """Take a file's lock until `locks` closes; False where somebody else holds it, or there are no locks."""
    with suppress(OSError):
        if (lock := take_lock(path)) is not None:
            locks.enter_context(lock)
            locks.callback(path.unlink, missing_ok=True)
            return True
    return False


def _prune(folder: Path, *, room: int) -> None:
    """Remove abandoned entries: old ones, and the oldest until all fit into `room` bytes. None that is in use."""
    for entry in sorted(_entries(folder), key=_age):  # the newest first: they keep the room
        room -= _nbytes(entry)
        if room >= 0 and _age(entry) < _OLDEST_SECONDS:
            continue
        with ExitStack() as locks:
            if _locked(folder / f"{entry.name}.lock", locks):
                shutil.rmtree(entry, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()]


def _age(entry: Path) -> float:
    """Seconds since it was used; forever for one that another process has just removed."""
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return float("inf")


def _nbytes(folder: Path) -> int:
    """What the files of an entry occupy; another process may remove them meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size if path.is_file() else 0
    return found


def job_key(job: ModelJob, weights: Sequence[Path]) -> str:
    """Return the hex digest under which the unfinished export of `job` is kept."""
    texts = replace(job.texts, noise_positions=0)  # how long the noise is measured is a matter of that step alone
    values = {
        "options": {
            field.name: canonical(getattr(job, field.name))
            for field in fields(job)
            if field.name not in ("source", "texts", "license")
        },
        "texts": canonical(texts),
        "source": [_text(job.source.folder / "config.json"), job.source.tokenizer.digest],
        "weights": [_weights(path, job.source) for path in weights],
        "code": [edgedecode.__version__, _code()],
        "packages": [_version(name) for name in _PACKAGES],
    }
    return facts_key(json.dumps(values, sort_keys=True))


def canonical(value: object) -> JsonValue:
    """Return what tells this value from any other, the same in every process; arrays and files by their content.

    A value of a kind that is not known here differs from everything, itself included: it is never resumed.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *([field.name, canonical(getattr(value, field.name))] for field in fields(value))]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, Path):
        return ["path", str(value), _text(value) if value.is_file() else None]
    if isinstance(value, Mapping):
        return ["mapping", *sorted(([repr(key), canonical(each)] for key, each in value.items()), key=str)]
    if isinstance(value, (list, tuple)):
        return ["sequence", *map(canonical, value)]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(repr, value))]
    if value is None or isinstance(value, (bool, int, float, str, bytes, Enum)):
        return repr(value)
    return secrets.token_hex()


def _text(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _weights(path: Path, source: Source) -> list[str | int]:
    """What changes when a weights file does, without reading it whole."""
    found = path.stat()
    whose = [source.commit] if source.commit else [found.st_mtime_ns, found.st_ino]
    return [path.name, found.st_size, _header(path), *whose]


def _header(path: Path) -> str:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return hashlib.sha256(file.read(min(length, _LARGEST_HEADER))).hexdigest()


def _code() -> str:
    """Digest of the export's own sources: a change starts the export from the beginning."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as private builds of torch
        return "unknown"
