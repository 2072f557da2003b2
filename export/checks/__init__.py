"""What an export is checked against, and what is measured on it."""
