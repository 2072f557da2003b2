"""Embeddings: vectors of texts, of which those of texts that mean the like are near each other."""
