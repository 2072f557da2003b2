"""What this machine offers to run on."""
