"""The command line's verbs, written against the public API."""
