"""Programs over the public API: the verbs of the command line."""
