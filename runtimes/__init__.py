"""Back ends: each folder opens one engine's models as the core's LanguageModel."""
