"""`bench --memory-sweep`: the same chat under a row of memory budgets, each in a process of its own."""
