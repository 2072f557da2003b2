"""Output of a bench run: conditions, tables and charts."""
