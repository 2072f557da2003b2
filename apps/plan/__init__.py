"""What a conversation takes of memory."""
