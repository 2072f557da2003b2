"""Other greedy loops on the pack's own files, which ours is compared with."""
