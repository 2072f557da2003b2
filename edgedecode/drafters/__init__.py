"""Drafters: one file each, registered under the entry-point group `edgedecode.drafters`."""
