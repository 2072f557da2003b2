"""What a server writes on its own, token by token: plain decoding without a request for each."""

from collections import deque
from collections.abc import Mapping, Sequence

from .connection import Connection

_MOST_TOKENS = 128
"""Of one request: the server does not know where an answer ends by its limit, and writes as much in vain at most."""


class TokenStream:
    """A completion of `tokens` by llama-server's API. sampling: as `SamplingOptions.as_dict`. Raises TargetFailed."""

    def __init__(
        self, connection: Connection, tokens: Sequence[int], sampling: Mapping[str, float], *, seed: int, model: str
    ) -> None:
        body = {**sampling, "prompt": list(tokens), "stream": True, "n_predict": _MOST_TOKENS, "return_tokens": True}
        named = {"model": model} if model else {}
        drawn = {"seed": seed} if sampling.get("temperature") else {}  # without, its KV cache is kept for the next
        self._events = connection.events("/completion", body | named | drawn | {"cache_prompt": True})
        self._length, self._last = len(tokens), tokens[-1]
        self._waiting = deque[int]()

    def continues(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` are those that it has written so far."""
        return len(tokens) == self._length and tokens[-1] == self._last

    def next(self) -> int | None:
        """Return the next token; None: it has ended."""
        while not self._waiting:
            event = next(self._events, None)
            found = None if event is None else event.get("tokens")
            if not isinstance(found, list):
                return None
            self._waiting += [each for each in found if isinstance(each, int)]
            if event is not None and event.get("stop") and not self._waiting:
                return None
        self._last = self._waiting.popleft()
        self._length += 1
        return self._last

    def close(self) -> None:
        """End the request."""
        self._events.close()
