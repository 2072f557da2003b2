"""What a pass reads: ids, positions, lengths and rows, and which slots each row sees."""
