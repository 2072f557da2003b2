"""Native kernels of the ONNX runtime and their bindings. Nothing here is needed: numpy and the engine do without."""
