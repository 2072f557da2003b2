"""Tasks with reference answers: read from files, and scored."""
