"""Checks bundles for what otherwise fails on a device."""
