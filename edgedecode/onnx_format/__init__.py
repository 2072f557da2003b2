"""The ONNX file format without the onnx package: reading, writing, and validation of untrusted graphs."""
