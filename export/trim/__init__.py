"""Smaller vocabularies for drafts: which ids they keep, what they are worth, the graphs and files that hold them."""
