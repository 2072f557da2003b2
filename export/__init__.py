"""Export: Hugging Face folders become packs; the only ring that knows training frameworks."""
