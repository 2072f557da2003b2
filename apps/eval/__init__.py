"""The verb `eval`: compare two engines on a pack, and KV cache types with float32."""
