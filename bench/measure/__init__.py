"""Measurements: timed models and answers, task families, costs of forward passes, host overhead, sampling."""
