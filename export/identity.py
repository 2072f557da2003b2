"""The key of a job: a digest of everything that determines the files and numbers an export makes of it.

Texts count with their content; weights, which may be many gigabytes, with their headers, sizes, times and inodes, and
those of the hub with the commit. What a job or a recipe gains later counts by itself, through its representation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import edgedecode

from .model import ModelJob
from .source import Source

__all__ = ["job_key"]

_PACKAGES = ("numpy", "onnx_ir", "onnxruntime", "onnxruntime-genai", "safetensors", "torch", "transformers")
_LARGEST_HEADER = 100 << 20


def job_key(job: ModelJob, weights: Sequence[Path]) -> str:
    """Return the hex digest under which the unfinished export of `job` is kept."""
    texts = replace(job.texts, noise_positions=0)  # how long the noise is measured is a matter of that step alone
    values = {
        "options": {
            field.name: repr(getattr(job, field.name))
            for field in fields(job)
            if field.name not in ("source", "texts", "license")
        },
        "texts": repr(texts),
        "source": [_text(job.source.folder / "config.json"), job.source.tokenizer.digest],
        "weights": [_weights(path, job.source) for path in weights],
        "code": [edgedecode.__version__, _code()],
        "packages": [_version(name) for name in _PACKAGES],
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


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
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as torch's builds of one's own
        return "unknown"
