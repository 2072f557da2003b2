"""Folders that other exporters made become packs."""
