"""Trimmed draft vocabularies: choose the ids to keep, measure the gain, write the graphs and files."""
