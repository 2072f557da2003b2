"""The verb `bench`, for developers: interleaved measurements of plain and speculative decoding."""
