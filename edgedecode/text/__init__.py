"""Conversion between text and tokens: tokenizer, chat template, transcript, stop strings."""
