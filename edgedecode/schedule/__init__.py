"""What to draft: acceptance, costs and the scheduler that weighs them. Imports decode only."""
