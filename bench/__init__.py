"""Plain and speculative decoding, measured interleaved."""
