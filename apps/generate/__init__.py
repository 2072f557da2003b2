"""The verb `generate`: one answer to one prompt."""
