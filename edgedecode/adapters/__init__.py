"""LoRA adapters: their files, the products they change, adding them to a pack, and loading them into a model."""
