"""Export: make packs from Hugging Face models. The only ring that may import training frameworks."""
