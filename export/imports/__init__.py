"""Imports GGUF files, and ONNX folders made by other exporters, as packs."""
