"""The verb `cache`: show and clear the user's cache."""
