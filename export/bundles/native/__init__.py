"""Packs for the native library: what it reads instead of tokenizer.json, chat templates and Python."""
