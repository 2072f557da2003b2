"""The verb `chat`: a conversation in the terminal."""
