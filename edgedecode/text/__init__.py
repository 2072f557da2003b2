"""Between text and tokens: tokenizer, chat template, transcript, stop strings."""
