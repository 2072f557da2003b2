"""Runs a bundle's self-test on what this machine has of the devices that it is for."""
