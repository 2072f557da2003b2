"""Builds ONNX graphs and their shared weights file from a checkpoint."""
