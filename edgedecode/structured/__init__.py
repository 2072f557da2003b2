"""Structured output: answers that follow a JSON Schema, a grammar or a regular expression."""
