"""Other engines on the same weights and prompts, each in its own process, interleaved with edgedecode."""
