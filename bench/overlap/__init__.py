"""Simulates draft and target on two devices."""
