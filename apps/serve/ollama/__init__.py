"""Ollama's API: its bodies are read into the server's one kind of request, and its replies written from the answers."""
