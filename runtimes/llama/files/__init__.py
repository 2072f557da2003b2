"""Files for llama.cpp: cached GGUF builds, scratch files, and the probe in a child process."""
