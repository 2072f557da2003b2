"""What a server writes on its own, token by token: plain decoding without a request for each. A function each kind."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from edgedecode.drafters.foreign_text import TextTokens
from edgedecode.text.tokenizer import Tokenizer

from .connection import Connection, TargetFailed

_MOST_IDS = 128
"""Of one request for ids: drafts may make one needless."""
FEW = 8
"""Tokens of a request where the device's model goes on soon. Higher: fewer requests, more tokens in vain."""


class DeviceText:
    """The device's tokens as text, for servers that tell no ids."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self.encode, self._tokenizer, self._pieces = tokenizer.encode, tokenizer, TextTokens(tokenizer)
        self._first = tokenizer.encode("", add_special=True)  # servers put it in front themselves
        written = (id for id in ends if (tokenizer.token_text(id) or "\0") in tokenizer.chat_template.source)
        self.end = min(written, default=min(ends, default=-1))
        """The id for the end of an answer, which a server does not spell."""

    def text(self, tokens: Sequence[int]) -> str:
        """Return a prompt's text, with the control tokens of the chat template."""
        start = len(self._first) if [*tokens[: len(self._first)]] == self._first else 0
        return self._tokenizer.decode(tokens[start:], skip_special=False)

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text that follows others, none of which is a control token."""
        return self._pieces.of(text, begins=False)


@dataclass(frozen=True, slots=True)
class Begun:
    """A text to go on with, by `most` tokens. sampling: as `SamplingOptions.as_dict`. seed: of the answer."""

    tokens: Sequence[int]
    most: int
    sampling: Mapping[str, float]
    seed: int
    model: str
    device: DeviceText

    @property
    def drawn(self) -> dict[str, float]:
        """The options in OpenAI's words. Other tokens are drawn after other ones: the same seed would repeat itself."""
        chosen = {name: self.sampling[name] for name in ("top_k", "min_p") if self.sampling.get(name)}
        always = {name: self.sampling.get(name, 0.0) for name in ("temperature", "top_p")}
        return {**always, **chosen, "seed": (self.seed + len(self.tokens)) % (1 << 31)}

    def events(self, connection: Connection, path: str, body: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        named = {"model": self.model} if self.model else {}
        with closing(connection.events(path, {**named, **body, "stream": True})) as events:
            yield from events


Write: TypeAlias = Callable[[Connection, Begun], Generator[int]]
"""Yields ids. Raises TargetFailed, and LookupError, TypeError or AttributeError for a reply of another shape."""


def write_ids(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for /completion as llama-server has it, whose ids are the device's.

    It leaves out the ids with which a character is incomplete: they are those of the character, if as many are missing.
    """
    drawn = {"seed": begun.seed} if begun.sampling.get("temperature") else {}  # without, its KV cache is kept
    most = min(begun.most, _MOST_IDS)
    options = {"n_predict": most, "return_tokens": True, "cache_prompt": True}
    body = {**begun.sampling, **drawn, **options, "prompt": [*begun.tokens]}
    count = 0
    for event in begun.events(connection, "/completion", body):
        ids, left = event["tokens"], event.get("tokens_predicted", 0) - count
        if ids and len(ids) < left:
            last, ids = ids, begun.device.ids(event["content"])
            if len(ids) != left or ids[-len(last) :] != last:
                return
        count += len(ids)
        yield from ids


def write_text(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for OpenAI's /v1/completions. What comes at once, mostly a token, is encoded at once."""
    body = {**begun.drawn, "prompt": begun.device.text(begun.tokens), "max_tokens": begun.most}
    for event in begun.events(connection, "/v1/completions", body):
        for choice in event["choices"]:
            yield from begun.device.ids(choice["text"])
            if choice.get("finish_reason") == "stop":
                yield begun.device.end


def write_ollama(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for Ollama's /api/generate without its chat template, which its /v1/completions would add."""
    options = {**begun.drawn, "num_predict": begun.most}
    body = {"prompt": begun.device.text(begun.tokens), "raw": True, "options": options}
    for event in begun.events(connection, "/api/generate", body):
        yield from begun.device.ids(event["response"])
        if event.get("done_reason") == "stop":
            yield begun.device.end


class TokenStream:
    """What a server goes on with. size: of the vocabulary."""

    def __init__(self, connection: Connection, write: Write, begun: Begun, *, size: int) -> None:
        self._ids, self._host, self._size = write(connection, begun), connection.host, size
        self._length, self._last = len(begun.tokens), begun.tokens[-1]

    def continues(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` are those that it has written so far."""
        return len(tokens) == self._length and tokens[-1] == self._last

    def next(self) -> int:
        """Return the next token. Raises TargetFailed, also at the end."""
        try:
            self._last = next(self._ids)
            if not 0 <= self._last < self._size:
                raise LookupError(f"token {self._last}")
        except StopIteration:
            raise TargetFailed(f"{self._host} writes nothing") from None
        except (LookupError, TypeError, AttributeError) as error:
            told = f"{type(error).__name__}: {error}"
            raise TargetFailed(f"{self._host} does not answer as such a server does ({told:.80})") from None
        self._length += 1
        return self._last

    def close(self) -> None:
        """End the request."""
        self._ids.close()
