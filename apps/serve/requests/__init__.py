"""The bodies of OpenAI's endpoints: fields, messages and functions, read into one checked request."""
