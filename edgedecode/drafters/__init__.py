"""Drafters: one module each, registered in the entry-point group `edgedecode.drafters`."""
