"""What a bench run shows: its conditions and tables."""
