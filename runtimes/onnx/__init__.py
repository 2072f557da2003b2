"""ONNX Runtime back end."""
