"""The decode loop and what it is made of: models, drafts, verification."""
