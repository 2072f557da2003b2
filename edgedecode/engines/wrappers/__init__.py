"""Engines over other engines: one model in memory at a time, and a different engine for each model."""
