"""The decode loop and its parts: models, drafts, verification."""
