"""Graph passes over an exported model, one file each."""
