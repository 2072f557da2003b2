"""A conversation: what it takes, which drafters it gets, its answers and what they share."""
