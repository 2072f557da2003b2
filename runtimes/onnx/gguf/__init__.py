"""Builds the graph of a GGUF file in memory, for our own kernels."""
