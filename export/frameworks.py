"""What export needs beyond the core, looked for without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from edgedecode.errors import RuntimeUnavailable

__all__ = ["require_frameworks"]

_NEEDED = ("onnx_ir", "onnxruntime", "onnxruntime_genai", "safetensors", "torch", "transformers")


def require_frameworks() -> None:
    """Raise RuntimeUnavailable, with the pip line, when a package is missing."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise RuntimeUnavailable(f"export needs {', '.join(missing)}, not installed: pip install 'edgedecode[export]'")
