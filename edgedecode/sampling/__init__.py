"""Samples tokens from logits: weights, counter-based noise, exact probabilities. Depends only on numpy."""
