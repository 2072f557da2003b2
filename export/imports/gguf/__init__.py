"""GGUF files that someone else made become packs, where they lie."""
