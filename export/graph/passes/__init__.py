"""Passes that rewrite an exported model's graph."""
