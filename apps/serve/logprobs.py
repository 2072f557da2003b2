"""Log probabilities in the forms of OpenAI's replies: of chat completions, of completions, and of responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from msgspec import Struct

from edgedecode import TokenLogprob
from edgedecode.text.tokenizer import Tokenizer

_LEAST = -9999.0
"""Stands for impossible tokens, as in OpenAI's replies: JSON has no infinity."""


class TopLogprob(Struct):
    """bytes: empty for special tokens, which add no text."""

    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[Logprob]
    refusal: None


class CompletionLogprobs(Struct):
    """text_offset: characters of the choice's text before each token. With echo the prompt's first token has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A token of an answer. token: its own text, with U+FFFD for the parts of a character. data: its exact bytes.

    A special token adds no text: it has no bytes, and its `token` is the vocabulary's name. logprob: NaN for the first
    token of a prompt.
    """

    token: str
    data: bytes
    logprob: float
    top: tuple["Entry", ...] = ()
    offset: int = 0
    """Characters of the answer before the token."""
    id: int = 0


class Entries:
    """Makes the entries of one answer from its chunks' log probabilities, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._detokenizer = tokenizer, tokenizer.detokenizer()
        self._offset = 0

    def of(self, logprobs: Sequence[TokenLogprob], text: str = "") -> list[Entry]:
        """Return the entries of the next tokens. text: theirs, in which a prompt's special tokens may be written."""
        found = []
        for each in logprobs:
            top = tuple(self._entry(token, logprob) for token, logprob in each.top)
            found.append(entry := self._entry(each.token, each.logprob, top=top))
            written = not entry.data and text.startswith(entry.token, self._offset)
            self._offset += len(entry.token if written else self._detokenizer.push((each.token,)))
        return found

    def _entry(self, token: int, logprob: float, *, top: tuple[Entry, ...] = ()) -> Entry:
        data = self._tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace") if data else self._tokenizer.token_text(token) or ""
        return Entry(text, data, max(logprob, _LEAST), top, self._offset, token)


def chat_form(entries: Sequence[Entry]) -> ChatLogprobs | None:
    """Return `choices[].logprobs` of a chat completion; None without entries."""
    return ChatLogprobs(response_form(entries), None) if entries else None


def completion_form(entries: Sequence[Entry]) -> CompletionLogprobs | None:
    """Return `choices[].logprobs` of a completion; None without entries.

    As in OpenAI's replies, the emitted token is among `top_logprobs` too. Of alternatives with the same text (parts of
    characters) the likeliest is given.
    """
    if not entries:
        return None
    return CompletionLogprobs(
        [each.token for each in entries],
        [None if isnan(each.logprob) else each.logprob for each in entries],
        [None if isnan(each.logprob) else _by_text(each) for each in entries],
        [each.offset for each in entries],
    )


def _by_text(entry: Entry) -> dict[str, float]:
    """Return the log probabilities of an entry's token and its alternatives, of equal texts that of the likeliest."""
    found: dict[str, float] = {}
    for each in (*entry.top, entry):
        found.setdefault(each.token, each.logprob)
    return found


def response_form(entries: Sequence[Entry]) -> list[Logprob]:
    """Return `logprobs` of a response's text."""
    tops = ([TopLogprob(top.token, top.logprob, [*top.data]) for top in each.top] for each in entries)
    return [Logprob(each.token, each.logprob, [*each.data], top) for each, top in zip(entries, tops, strict=True)]
