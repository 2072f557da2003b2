"""The verb `bench`, for developers: plain and speculative decoding, measured interleaved. May import every ring."""
