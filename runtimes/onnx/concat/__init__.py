"""Graphs that join past and present keys and values themselves: their model, state and memory plan."""
