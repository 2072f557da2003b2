"""What the model sees of a conversation: rendered messages as tokens, keeping the ids the model itself generated.

Knows text and ids; knows no model and no KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedecode.errors import InputError

from .encoder import TextSource
from .messages import Message
from .tokenizer import Tokenizer

__all__ = ["Transcript"]


def _nothing() -> str:
    return ""


class Transcript:
    """Messages, and the tokens that stand for them.

    A later turn renders only what is new when the old rendering is a prefix of the new one, so that generated ids
    are kept even where encoding their text again would give others. Otherwise everything is encoded afresh, and the
    caller goes on from the first id that differs.
    """

    def __init__(
        self, tokenizer: Tokenizer, messages: Sequence[Message] = (), *, source: TextSource | None = None
    ) -> None:
        """Start with these messages; `source` renders and encodes, None: the tokenizer itself."""
        self._tokenizer = tokenizer
        self._source: TextSource = source or tokenizer
        self._now: tuple[tuple[Message, ...], Callable[[], str]] = (tuple(messages), _nothing)
        """The messages, and what was said of the answer to the last: replaced together, since other threads read it."""
        self.tokens: list[int] = []
        self._rendered: str | None = None
        """The text that exactly the first `_rendered_tokens` tokens stand for; None: nothing reusable."""
        self._rendered_tokens = 0
        self._prompt = ""
        self._prompt_tokens = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages without an answer that has not ended."""
        return self._now[0]

    @property
    def heard(self) -> tuple[Message, ...]:
        """The messages, with what was said so far of an answer that has not ended."""
        messages, said = self._now
        text = said()
        return (*messages, Message("assistant", text)) if text else messages

    def start_over(self, messages: Sequence[Message]) -> None:
        """Take other messages; `tokens` stay, since they say what a state has read."""
        self._now = (tuple(messages), _nothing)
        self.forget_rendering()

    def open_turn(self, prompt: str) -> list[int]:
        """Return the tokens of the conversation with a user message added, up to the assistant's header.

        Changes nothing: `begin_reply` takes the turn over once the caller has accepted it.
        """
        text = self._source.render([*self.messages, Message("user", prompt)])
        if self._rendered is not None and text.startswith(self._rendered):
            return self.tokens[: self._rendered_tokens] + self._source.encode(text[len(self._rendered) :])
        return self._source.encode(text)

    def begin_reply(self, prompt: str, tokens: list[int], *, said: Callable[[], str] = _nothing) -> None:
        """Take over a turn that `open_turn` made; `said` tells the answer so far."""
        messages = (*self.messages, Message("user", prompt))
        self._prompt = self._source.render(messages)
        self._now = (messages, said)
        self._prompt_tokens = len(tokens)
        self.tokens = tokens
        self._rendered = None

    def end_reply(self, text: str, *, ends: frozenset[int]) -> None:
        """Record the assistant's message: `text` is what the user was shown of the tokens after the prompt."""
        self._now = ((*self.messages, Message("assistant", text)), _nothing)
        generated = self.tokens[self._prompt_tokens :]
        if generated and generated[-1] in ends:
            generated.pop()
        self._rendered = self._prompt + self._tokenizer.decode(generated, skip_special=False)
        self._rendered_tokens = self._prompt_tokens + len(generated)

    def bare(self, text: str) -> list[int]:
        """Return the tokens of a bare text, with the tokenizer's own leading tokens."""
        tokens = self._source.encode(text, add_special=True)
        if not tokens:
            raise InputError("the prompt is empty: a bare prompt needs at least one token")
        return tokens

    def forget_rendering(self) -> None:
        """Make the next turn encode everything afresh; `tokens` stay, since they say what a state has read."""
        self._rendered = None
