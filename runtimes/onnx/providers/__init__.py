"""Execution providers of ONNX Runtime: one file each, found by entry points of group `edgedecode.providers`."""
