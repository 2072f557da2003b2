"""What export needs beyond the core, looked for without importing it, and what its errors say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from edgedecode.errors import CapabilityError, ExportError, InputError, ManifestError, RuntimeUnavailable

__all__ = ["reason_of", "refused", "require_frameworks"]

_NEEDED = {
    "export": ("onnx_ir", "onnxruntime", "onnxruntime_genai", "safetensors", "torch", "transformers"),
    "import": ("onnx_ir", "onnxruntime"),
    "trim": ("onnx_ir", "onnxruntime"),
}
"""Verb → packages."""
_REASON_LENGTH = 200


def require_frameworks(verb: str = "export", *, extra: str | None = None) -> None:
    """Raise RuntimeUnavailable, with the pip line, when a package that `verb` needs is missing.

    extra: what brings the packages; None: it is named as the verb is.
    """
    if missing := [name for name in _NEEDED[verb] if find_spec(name) is None]:
        names = ", ".join(missing)
        raise RuntimeUnavailable(f"{verb} needs {names}, not installed: pip install 'edgedecode[{extra or verb}]'")


def reason_of(error: Exception) -> str:
    """Return the message of a third-party error, on one line and shortened."""
    return (" ".join(str(error).split()) or type(error).__name__)[:_REASON_LENGTH]


@contextmanager
def refused(where: str | Path = "") -> Iterator[None]:
    """Raise as an ExportError, behind the name of what was read, whatever the core refuses of it."""
    try:
        yield
    except (CapabilityError, InputError, ManifestError) as error:
        raise ExportError(f"{where}: {error}" if where else str(error)) from None
