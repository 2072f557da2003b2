"""Runs on a device: these files go into bundles, and need nothing but Python, numpy and onnxruntime."""
