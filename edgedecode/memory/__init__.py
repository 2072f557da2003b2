"""The memory budget: what there is, who holds what of it, what the process takes. Imports errors and turns only."""
