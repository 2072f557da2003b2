"""Engines and frameworks that `bench --against` compares with and that this ring alone knows."""
