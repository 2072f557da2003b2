"""What clients read when something is wrong: the forms of errors in each API, and which error has which status."""
