"""Which engine runs a pack: what is installed, what was measured, and what a runtime must offer."""
