"""Checks for the packages that export needs beyond the core, without importing them, and converts errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from edgedecode.errors import CapabilityError, ExportError, InputError, ManifestError, RuntimeUnavailable
from edgedecode.typed_json import JsonValue, typed

_NEEDED = {
    "export": ("onnx_ir", "onnxruntime", "onnxruntime_genai", "safetensors", "torch", "transformers"),
    "import": ("onnx_ir", "onnxruntime"),
    "trim": ("onnx_ir", "onnxruntime"),
    "distil": ("torch", "safetensors", "gguf", "onnxruntime"),
}
"""Verb → required packages."""
_REASON_LENGTH = 200
_Kind = TypeVar("_Kind")


def require_frameworks(verb: str = "export", *, extra: str | None = None) -> None:
    """Raise RuntimeUnavailable, with the pip line, when a package that `verb` needs is missing.

    extra: the extra that installs the packages; None: the one named after the verb.
    """
    if missing := [name for name in _NEEDED[verb] if find_spec(name) is None]:
        names = ", ".join(missing)
        raise RuntimeUnavailable(f"{verb} needs {names}, not installed: pip install 'edgedecode[{extra or verb}]'")


def reason_of(error: Exception) -> str:
    """Return a third-party error's message, shortened and on one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:_REASON_LENGTH]


def fields_of(value: JsonValue, kind: type[_Kind], where: str) -> _Kind:
    """Convert parsed JSON to a `kind`, a dataclass. Raises ExportError that names the wrong field."""
    try:
        return typed(value, kind, where)
    except ValueError as error:
        raise ExportError(str(error)) from None


@contextmanager
def refused(where: str | Path = "") -> Iterator[None]:
    """Turn the core's errors about a file or model into an ExportError that begins with `where`."""
    try:
        yield
    except (CapabilityError, InputError, ManifestError) as error:
        raise ExportError(f"{where}: {error}" if where else str(error)) from None
