"""What a bench run shows: its conditions, tables, a drawing."""
