"""OpenAI's responses: their bodies are read into the one kind of request, their replies written from answers."""
