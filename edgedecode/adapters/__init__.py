"""LoRA adapters of a pack: files, the products they change, adding and removing them, giving them to a model."""
