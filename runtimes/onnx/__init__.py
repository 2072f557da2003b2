"""ONNX Runtime back end. The engine is imported when a runtime is created, not with this package."""

from .onnx_runtime import OnnxRuntime

__all__ = ["OnnxRuntime"]
