"""The GGUF file format as its readers and importers need it: headers checked, tensors described. Knows no engine."""
