"""The kinds of what is trained: drafting heads and draft models, each with its network, folder and place in packs."""
