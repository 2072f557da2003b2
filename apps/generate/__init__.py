"""One answer to one prompt."""
