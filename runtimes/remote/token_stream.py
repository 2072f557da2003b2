"""What a server writes on its own, token by token: plain decoding without a request for each. A function each kind."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from edgedecode.errors import InputError
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.text.tokenizer import TextTokens
from edgedecode.typed_json import JsonValue

from .connection import Connection, Refused, TargetFailed

_LOST = 409
_Reply = TypeVar("_Reply")
_MOST_IDS = 128
"""Of one request for ids: drafts may make one needless."""
FEW = 8
"""Tokens of a request where the device's model goes on soon. Higher: fewer requests, more tokens in vain."""


@dataclass(slots=True)
class Asked:
    """A request: the last `rows` rows of `tokens`, of which the server has the first `keep` by its last reply.

    session: of the server, which it names; empty: none.
    """

    tokens: list[int]
    keep: int
    rows: int
    top: int
    session: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A text to go on with, by `most` tokens. sampling: as `SamplingOptions.as_dict`. seed: of the answer. pieces: of
    the device's tokenizer. end: the id for the end of an answer, which a server does not spell.
    """

    asked: Asked
    most: int
    sampling: Mapping[str, float]
    seed: int
    pieces: TextTokens
    end: int

    @property
    def drawn(self) -> dict[str, float]:
        """The options in OpenAI's words. Other tokens are drawn after other ones: the same seed would repeat itself."""
        chosen = {name: self.sampling[name] for name in ("top_k", "min_p") if self.sampling.get(name)}
        always = {name: self.sampling.get(name, 0.0) for name in ("temperature", "top_p")}
        return {**always, **chosen, "seed": (self.seed + len(self.asked.tokens)) % (1 << 31)}

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text that follows others, none of which is a control token."""
        return self.pieces.of(text, begins=False)

    def events(self, connection: Connection, path: str, body: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        with closing(connection.events(path, {**connection.named, **body, "stream": True})) as events:
            yield from events


Write: TypeAlias = Callable[[Connection, Begun], Generator[int]]
"""Yields ids. Raises TargetFailed, and LookupError, TypeError or AttributeError for a reply of another shape."""


def in_session(asked: Asked, ask: Callable[[dict[str, object]], _Reply]) -> _Reply:
    """Return the reply to what the session of an edgedecode server does not hold; a lost one begins again."""
    if asked.session:
        try:
            return ask({"session": asked.session, "keep": asked.keep, "tokens": asked.tokens[asked.keep :]})
        except Refused as error:
            if error.status != _LOST:
                raise
    return ask({"tokens": asked.tokens})


def write_session(connection: Connection, begun: Begun) -> Generator[int]:
    """Let `edgedecode serve --verify-drafts` go on in the session that verifies drafts, so that nothing is read again.

    Its first event names the session.
    """
    usual = SamplingOptions().as_dict()  # also the server's; penalties need all tokens, and are refused before
    sampling = {name: each for name, each in begun.sampling.items() if each != usual[name] and name != "penalty_window"}
    body = {**connection.named, **sampling, "seed": begun.seed, "write": min(begun.most, _MOST_IDS)}

    def opened(held: dict[str, object]) -> tuple[dict[str, Any], Generator[dict[str, JsonValue]]]:
        events = connection.events("/v1/verify", held | body)
        return next(events, {}), events

    first, events = in_session(begun.asked, opened)
    with closing(events):
        begun.asked.session = str(first["session"])
        connection.answers(first["model"])
        for event in events:
            if not (ids := cast(list[int], event["ids"])):
                raise LookupError("no ids")  # without end, they would keep the device waiting
            yield from ids


def write_ids(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for /completion as llama-server has it, whose ids are the device's.

    Greedy answers only, so that no seed is sent. It leaves out the ids with which a character is incomplete: they are
    those of the character, if as many are missing.
    """
    options = {"n_predict": min(begun.most, _MOST_IDS), "return_tokens": True, "cache_prompt": True}
    body = {**begun.sampling, **options, "prompt": begun.asked.tokens}
    count = 0
    for event in begun.events(connection, "/completion", body):
        ids, left = event["tokens"], event.get("tokens_predicted", 0) - count
        if ids and len(ids) < left:
            last, ids = ids, begun.ids(event["content"])
            if len(ids) != left or ids[-len(last) :] != last:
                return
        count += len(ids)
        yield from ids


def write_text(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for OpenAI's /v1/completions. What comes at once, mostly a token, is encoded at once."""
    body = {**begun.drawn, "prompt": begun.pieces.prompt(begun.asked.tokens), "max_tokens": begun.most}
    for event in begun.events(connection, "/v1/completions", body):
        for choice in event["choices"]:
            yield from begun.ids(choice["text"])
            if choice.get("finish_reason") == "stop":
                yield begun.end


def write_ollama(connection: Connection, begun: Begun) -> Generator[int]:
    """Ask for Ollama's /api/generate without its chat template, which its /v1/completions would add."""
    options = {**begun.drawn, "num_predict": begun.most}
    body = {"prompt": begun.pieces.prompt(begun.asked.tokens), "raw": True, "options": options}
    for event in begun.events(connection, "/api/generate", body):
        yield from begun.ids(event["response"])
        if event.get("done_reason") == "stop":
            yield begun.end


class TokenStream:
    """What a server goes on with. size: of the vocabulary."""

    def __init__(self, connection: Connection, write: Write, begun: Begun, *, size: int) -> None:
        self._ids, self._connection, self._size = write(connection, begun), connection, size
        self.asked, self._last = begun.asked, begun.asked.tokens[-1]
        self.length = len(begun.asked.tokens)
        """Of the tokens and of what came after them."""

    def continues(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` are those that it has written so far."""
        return len(tokens) == self.length and tokens[-1] == self._last

    def next(self) -> int:
        """Return the next token. Raises TargetFailed, also at the end."""
        try:
            self._last = next(self._ids)
            if type(self._last) is not int or not 0 <= self._last < self._size:
                raise LookupError(f"token {self._last}")
        except StopIteration:
            raise TargetFailed(f"{self._connection.host} writes nothing") from None
        except (LookupError, TypeError, AttributeError, InputError) as error:  # a text that is none, too
            raise self._connection.misread(error) from None
        self.length += 1
        return self._last

    def close(self) -> None:
        """End the request."""
        self._ids.close()
