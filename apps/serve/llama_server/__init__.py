"""llama-server's own API: its bodies are read into the one kind of request, its replies written from the answers."""
