"""The ONNX file format, read and written without onnx: what the gate checks and what `import` edits."""
