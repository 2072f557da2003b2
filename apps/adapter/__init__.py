"""The verb `cache`: what lies in the user's cache, and clearing it."""
