"""`bench --memory-sweep`: the same chat under several memory budgets, each in its own process."""
