"""Calibration, choice of the 8-bit matrices and of activation bits, and the loss of a recipe."""
