"""The verb `show`: the contents of a pack."""
