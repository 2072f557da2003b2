"""Calibration, choice of activation bits, and comparison of quantization recipes."""
