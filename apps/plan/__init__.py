"""The verb `plan`: the memory that a conversation needs."""
