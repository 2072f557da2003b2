"""The verb `imatrix`: llama.cpp's importance files of GGUF files."""
