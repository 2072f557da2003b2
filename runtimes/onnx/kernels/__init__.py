"""Native kernels of the ONNX runtime and their bindings. All are optional: numpy and the engine can replace them."""
