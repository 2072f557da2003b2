"""The command line of this ring: verbs, their options, and what they print."""
