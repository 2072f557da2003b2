"""The command line of export, import and trim: verbs, options and output."""
