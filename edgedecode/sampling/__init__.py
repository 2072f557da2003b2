"""From logits to a token: weights, draws by counted noise, exact probabilities. Numpy alone."""
