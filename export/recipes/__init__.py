"""Which weights are rounded how: calibration, and recipes compared."""
