"""The key of a job: a digest of everything that determines the files and numbers an export makes of it.

Texts count with their content; weights, which may be many gigabytes, with their headers, sizes, times and inodes, and
those of the hub with the commit. What a job or a recipe gains later counts by itself.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import edgedecode
from edgedecode.pack.json_fields import JsonValue

from ..job import ModelJob
from ..source import Source

__all__ = ["canonical", "job_key"]

_PACKAGES = ("numpy", "onnx_ir", "onnxruntime", "onnxruntime-genai", "safetensors", "torch", "transformers")
_LARGEST_HEADER = 100 << 20


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
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


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
    """Digest of the export's own sources: whoever changes them starts anew."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as torch's builds of one's own
        return "unknown"
