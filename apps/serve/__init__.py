"""The command `serve`: an OpenAI-compatible server on this machine."""
