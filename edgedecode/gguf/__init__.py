"""The GGUF file format: read, checked against what its engine cannot survive, written."""
