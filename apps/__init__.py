"""Programs over the public API; the only ring that prints."""
