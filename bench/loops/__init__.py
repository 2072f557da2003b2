"""Other greedy loops on the pack's files, to compare edgedecode's loop with."""
