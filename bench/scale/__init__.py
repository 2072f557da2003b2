"""A pack widened to the cost of a larger one, of the same text."""
