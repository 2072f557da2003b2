"""Files for llama.cpp: cached GGUF builds, trimmed drafts, scratch files, and the probe in a child process."""
