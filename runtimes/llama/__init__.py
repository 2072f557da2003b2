"""llama.cpp back end, over llama-cpp-python's low-level API. The engine is imported when a model is opened."""

from .llama_runtime import LlamaRuntime

__all__ = ["LlamaRuntime"]
