"""The GGUF file format: reading, writing, and checks for files that would crash llama.cpp."""
