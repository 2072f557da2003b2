"""The engine's Python module: import, version, log level, and the first line of its errors."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, TypeAlias

from edgedecode.errors import RuntimeUnavailable

Untyped: TypeAlias = Any
"""A value of the engine, which has no type annotations."""
SILENT = 4  # fatal only: our own errors report the rest


def import_engine() -> Untyped:
    """Import onnxruntime. Raises RuntimeUnavailable with the command that installs it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeUnavailable(
            f"ONNX Runtime does not start ({first_line(error)}): pip install 'edgedecode[onnx]'"
        ) from None
    onnxruntime.set_default_logger_severity(SILENT)  # for messages outside a session, such as refused allocations
    return onnxruntime


def engine_version() -> str | None:
    """Return onnxruntime's version, of any of its distributions; None: it is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    for suffix in ("", "-gpu", "-directml", "-openvino", "-qnn"):  # which install the same module
        with suppress(PackageNotFoundError):
            return version(f"onnxruntime{suffix}")
    return "unknown"


def first_line(error: BaseException) -> str:
    """Return the printable first line of an engine's message, which may contain a stack trace and text of the pack."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return "".join(character if character.isprintable() else "\ufffd" for character in line)
