"""Graphs of fixed width: model, state, and splitting of requests into passes."""
