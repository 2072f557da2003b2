"""What is measured: the stopwatches, answers under equal conditions, task families, costs of passes, host work."""
