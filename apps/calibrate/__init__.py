"""The verb `calibrate`: measure the switching curve of a pack."""
