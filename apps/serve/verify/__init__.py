"""Verifies the drafts of other devices: /v1/verify."""
