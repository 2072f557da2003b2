"""Trains a drafting head on text that its target writes (EAGLE-3, 2503.01840; FastDraft, 2411.11055)."""
