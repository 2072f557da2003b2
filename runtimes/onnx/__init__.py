"""ONNX Runtime back end. The engine itself is imported when a runtime is made, not when this package is."""

from .onnx_runtime import OnnxRuntime

__all__ = ["OnnxRuntime"]
