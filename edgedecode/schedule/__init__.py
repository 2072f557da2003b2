"""Choosing what to draft: acceptance rates, costs, and the scheduler that weighs them."""
