"""Checks of exported graphs against a transformers reference."""
