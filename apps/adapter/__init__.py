"""The verb `adapter`: list, add and remove the LoRA adapters of a pack."""
