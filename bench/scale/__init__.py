"""`bench --scale`: a pack widened to the cost of a larger model, with the same text."""
