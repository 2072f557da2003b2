"""Output of a bench run: conditions and tables."""
