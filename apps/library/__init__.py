"""The verbs of the library: `list`, `pull`, `rm` and `demo`."""
