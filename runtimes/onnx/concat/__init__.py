"""Graphs that concatenate past and present keys and values themselves: model, state and memory plan."""
