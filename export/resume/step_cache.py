"""Caches finished steps of exports, so that a rerun resumes where the last one stopped.

The cache is optional. Without a folder, file locks or disk space, or while another export of the same model runs, the
model is built in the new pack directly and its steps are not kept. The key is a digest of everything that determines a
job's files and numbers. Texts are hashed in full; weights, which may be many gigabytes, by headers, sizes, times and
inodes, or by the commit if they are from the hub. New fields of a job or a recipe enter the key automatically.
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
from edgedecode.cache import cache_folder, facts_key, sizes, user_cache
from edgedecode.locks import take_lock
from edgedecode.typed_json import JsonValue

from ..base_model import Source
from ..job import ModelJob
from .finished_steps import Unit

_log = logging.getLogger(__name__)

_MAX_AGE_SECONDS = 14 * 24 * 3600
_MAX_NBYTES = 8 << 30
_ROOM = 1.05
"""Factor on the forecast size: graphs, and a second copy of one for the checks."""
_PACKAGES = ("numpy", "onnx_ir", "onnxruntime", "onnxruntime-genai", "safetensors", "torch", "transformers")
_LARGEST_HEADER = 100 << 20


class Kept:
    """The units of one export. Holds the locks of cached units until it is closed."""

    def __init__(self, folder: Path | None, locks: ExitStack) -> None:
        self._folder = folder
        self._locks = locks
        self._units: list[Unit] = []

    def unit(self, role: str, *, key: str, nbytes: int, pack: Path) -> Unit:
        """Open the unit with this key and forecast size: in the cache if possible, else in `pack`."""
        place = self._place(key, role, nbytes)
        unit = Unit(pack if place is None else place, role, key=key, kept=place is not None)
        self._units.append(unit)
        return unit

    def forget(self) -> None:
        """Remove every unit, because the pack is complete."""
        for unit in self._units:
            unit.discard()

    def clear(self) -> None:
        """Remove unfinished files, and log which steps are kept."""
        for unit in self._units:
            unit.clear()
        if finished := [f"{unit.role} ({', '.join(unit.steps)})" for unit in self._units if unit.steps]:
            _log.warning("finished and kept: %s; run the same command again to resume", ", ".join(finished))

    def _place(self, key: str, role: str, nbytes: int) -> Path | None:
        if self._folder is None:
            return None
        if not _locked(self._folder / f"{key}.lock", self._locks):
            _log.warning("another export of the same %s is running: this one is not kept in the cache", role)
            return None
        place = self._folder / key
        held = sum(sizes(place))
        _prune(self._folder, room=_MAX_NBYTES - nbytes)
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            os.utime(place)  # marks it as recently used
            if shutil.disk_usage(place).free + held >= nbytes * _ROOM:
                return place
        _log.warning("%s has no room for about %.0f MB: %s is not kept in the cache", self._folder, nbytes / 1e6, role)
        shutil.rmtree(place, ignore_errors=True)
        return None


@contextmanager
def kept_units(*, use: bool = True) -> Iterator[Kept]:
    """Provide the cache during an export. On success its units are removed, on failure finished steps are kept.

    use: False disables the cache.
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
    if sys.platform == "win32":  # has no such file locks
        return None
    folder = cache_folder("exports")
    if folder is None:
        _log.warning(
            "the cache %s cannot be written: an interrupted export would start from the beginning", user_cache()
        )
    return folder


def _locked(path: Path, locks: ExitStack) -> bool:
    """Take a file's lock until `locks` closes; return False if it is held elsewhere or locks are unsupported."""
    with suppress(OSError):
        if (lock := take_lock(path)) is not None:
            locks.enter_context(lock)
            locks.callback(path.unlink, missing_ok=True)
            return True
    return False


def _prune(folder: Path, *, room: int) -> None:
    """Evict old entries, and the oldest until the rest fits into `room` bytes, but none in use."""
    for entry in sorted(_entries(folder), key=_age):  # most recently used first
        room -= sum(sizes(entry))
        if room >= 0 and _age(entry) < _MAX_AGE_SECONDS:
            continue
        with ExitStack() as locks:
            if _locked(folder / f"{entry.name}.lock", locks):
                shutil.rmtree(entry, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()]


def _age(entry: Path) -> float:
    """Return the seconds since its last use; infinite if another process has just removed it."""
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return float("inf")


def job_key(job: ModelJob, weights: Sequence[Path]) -> str:
    """Return the hex digest that identifies the export of `job` in the cache."""
    texts = replace(job.texts, noise_positions=0)  # affects only the noise step, which has it in its name
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
    """Return a JSON value that identifies `value` across processes; arrays and files are hashed by content.

    A value of an unknown type gets a random identity, so a job that contains one is never resumed.
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
    """Return values that change when a weights file does, without reading all of it."""
    found = path.stat()
    origin = [source.commit] if source.commit else [found.st_mtime_ns, found.st_ino]
    return [path.name, found.st_size, _header(path), *origin]


def _header(path: Path) -> str:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return hashlib.sha256(file.read(min(length, _LARGEST_HEADER))).hexdigest()


def _code() -> str:
    """Return a digest of the export's own sources: a change invalidates the cache."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as custom builds of torch
        return "unknown"
