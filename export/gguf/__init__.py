"""A model of a pack as one GGUF file for llama.cpp: the same blocks, its tokenizer, and what its architecture needs."""
