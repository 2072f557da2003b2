"""Entropy switching: easy stretches are written by the draft model, hard ones by the target."""
