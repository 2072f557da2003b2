"""The models on this machine by name, wherever they lie, and those that can be downloaded."""
