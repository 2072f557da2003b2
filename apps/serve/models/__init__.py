"""The models of a server: which there are, which are in memory, and the places of their answers."""
