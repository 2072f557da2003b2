"""Drafting heads of EAGLE-3's form: reading publishers' layouts, and adding a head to a pack."""
