"""Compiles a pack's models for NPUs ahead of time."""
