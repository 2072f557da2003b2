"""Writes a pack's models as GGUF files for llama.cpp: the same quantized blocks, the tokenizer and the metadata."""
