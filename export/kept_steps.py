"""Keeps the slow steps of an export until the pack is complete: a run after an interruption finds them.

Kept are a model's weights file, as a hard link or a copy, and what was measured with it. The cache is optional: what
cannot be kept is made again. Its key is a digest of everything that determines the weights and the measurements. Texts
are hashed in full; weights, which may be many gigabytes, by headers, sizes, times and inodes, or by the hub's commit.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from msgspec import to_builtins

import edgedecode
from edgedecode.cache import aside, cache_folder, facts_key, keep_json, kept_json, sizes, user_cache
from edgedecode.errors import EdgeDecodeError, ManifestError
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.integrity import file_entry, file_sha256
from edgedecode.pack.new_folder import link_or_copy

from .base_model import Source
from .job import ModelJob
from .stages import Stages

_log = logging.getLogger(__name__)

_MAX_AGE_SECONDS = 14 * 24 * 3600
_MAX_NBYTES = 8 << 30
_PACKAGES = ("numpy", "onnx_ir", "onnxruntime", "onnxruntime-genai", "safetensors", "torch", "transformers")
_LARGEST_HEADER = 100 << 20
_APART = ("source", "texts", "license", "graphs", "gguf")
"""Fields of a job that are hashed by content, or do not change what is kept."""
_Value = TypeVar("_Value")


class KeptSteps:
    """What is kept of one model's export in `folder`; None: nothing is."""

    def __init__(self, folder: Path | None, role: str, stages: Stages) -> None:
        self._folder, self._role, self._stages = folder, role, stages
        self.names: list[str] = []
        """The steps that a later run would find."""

    def file(self, path: Path, make: Callable[[], None]) -> None:
        """Put the kept file of this name at `path`, or make it there and keep it."""
        if self._folder is None:
            make()
            return
        kept = self._folder / path.name
        if not self._taken(kept, path):
            make()
            self._keep(path, kept)

    def value(self, name: str, kind: type[_Value], make: Callable[[], _Value]) -> _Value:
        """Return the kept value of this name, or make and keep it."""
        if self._folder is None:
            return make()
        place = self._folder / f"{name}.json"
        try:
            value = kept_json(place, kind)
        except (FileNotFoundError, ValueError):
            value = make()
            keep_json(place, to_builtins(value))
        self.names.append(name)
        return value

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Forget everything if a check fails within: what is kept may be wrong."""
        try:
            yield
        except EdgeDecodeError:
            self.forget()
            raise

    def forget(self) -> None:
        """Remove what is kept."""
        self.names.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _taken(self, kept: Path, path: Path) -> bool:
        """Put an undamaged kept file at `path`; return whether there was one."""
        try:
            entry = kept_json(_record(kept), FileEntry)
        except (FileNotFoundError, ValueError):
            return False
        title = f"{self._role}: {path.stem} from the cache"
        with self._stages.stage(title, entry.nbytes) as advance, suppress(OSError, ManifestError):
            if file_sha256(kept, progress=advance) == entry.sha256:
                link_or_copy(kept, path)
                self.names.append(path.stem)
                return True
        return False

    def _keep(self, path: Path, kept: Path) -> None:
        """Keep a file. The record, which makes it valid, is written last."""
        try:
            _record(kept).unlink(missing_ok=True)
            with aside(kept) as fresh:
                link_or_copy(path, fresh)
                entry = file_entry(fresh, flushed=True)
            keep_json(_record(kept), to_builtins(entry))
        except OSError as error:
            _log.warning("%s is not kept in the cache %s: %s", path.name, kept.parent, error.strerror or error)
            return
        self.names.append(path.stem)


def kept_steps(job: ModelJob, weights: Sequence[Path], stages: Stages, *, use: bool) -> KeptSteps:
    """Return what is kept of a job, after evicting old entries; `use`: False keeps nothing."""
    return KeptSteps(_folder_of(job, weights) if use else None, job.role, stages)


def _folder_of(job: ModelJob, weights: Sequence[Path]) -> Path | None:
    folder = cache_folder("exports")
    if folder is None:
        _log.warning("%s cannot be written: an interrupted export would start from the beginning", user_cache())
        return None
    _prune(folder)
    place = folder / job_key(job, weights)
    with suppress(OSError):
        place.mkdir(exist_ok=True)
        os.utime(place)  # marks it as recently used
        return place
    return None


def _prune(folder: Path) -> None:
    """Remove old entries, and the least recently used ones beyond the cache's size."""
    room = _MAX_NBYTES
    for age, entry in sorted((_age(entry), entry) for entry in folder.iterdir()):
        room -= sum(sizes(entry))
        if room < 0 or age > _MAX_AGE_SECONDS:
            shutil.rmtree(entry, ignore_errors=True)


def _age(entry: Path) -> float:
    """Return the seconds since its last use; infinite if another process has just removed it."""
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return float("inf")


def _record(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.json")


def job_key(job: ModelJob, weights: Sequence[Path]) -> str:
    """Return the hex digest that identifies the export of `job`; new fields of a job or a recipe are part of it."""
    return facts_key(
        edgedecode.__version__,
        _code(),
        *map(_version, _PACKAGES),
        *(repr(getattr(job, field.name)) for field in fields(job) if field.name not in _APART),
        repr(replace(job.texts, noise_positions=0)),  # affects only the noise step, which has it in its name
        hashlib.sha256((job.source.folder / "config.json").read_bytes()).hexdigest(),
        job.source.tokenizer.digest,
        *(_identity(path, job.source) for path in weights),
    )


def _identity(path: Path, source: Source) -> str:
    """Return text that changes when a weights file does, without reading all of it."""
    found = path.stat()
    with path.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), _LARGEST_HEADER))
    origin = source.commit or f"{found.st_mtime_ns} {found.st_ino}"
    return f"{path.name} {found.st_size} {hashlib.sha256(header).hexdigest()} {origin}"


def _code() -> str:
    """Return a digest of the export's own sources: in a checkout they change without the version."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as custom builds of torch
        return "unknown"
