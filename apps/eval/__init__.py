"""What a pack's models say, measured: two engines against each other."""
