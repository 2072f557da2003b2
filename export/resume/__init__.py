"""Finished steps of an export, kept until its pack is in place."""
