"""The files that llama.cpp opens: built when first used and kept, cut for a trimmed draft, tried in a child process."""
