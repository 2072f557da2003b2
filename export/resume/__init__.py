"""Resuming interrupted exports: finished steps are kept in the user's cache until the pack is complete."""
