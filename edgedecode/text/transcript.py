"""What the model sees of a conversation: rendered messages as tokens, keeping the ids the model itself generated.

Knows text and ids; knows no model and no KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedecode.errors import BudgetExceeded, ContextExceeded, InputError

from .encoder import TextSource
from .kept_turns import turn_starts, without_oldest
from .messages import Message
from .tokenizer import Tokenizer

__all__ = ["Transcript", "Turn"]

KEPT_SHARE = 0.6
"""Of the context is kept at most where turns are dropped: less has them dropped seldom, more keeps more of them."""
_TOO_LONG = (ContextExceeded, BudgetExceeded)
"""Raised for a text that fits the context, or the memory that encoding it takes, with fewer turns only."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message behind the conversation before it, and the tokens of all that up to the assistant's header."""

    before: tuple[Message, ...]
    prompt: str
    tokens: list[int]
    dropped: int = 0
    """How many of the oldest turns were left out of `before`."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.before, Message("user", self.prompt))


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

    @property
    def reply_tokens(self) -> list[int]:
        """What was generated since the newest turn began."""
        return self.tokens[self._prompt_tokens :]

    def open_turn(self, prompt: str) -> Turn:
        """Return the conversation with a user message added.

        Changes nothing: `begin_reply` takes the turn over once the caller has accepted it.
        """
        text = self._source.render([*self.messages, Message("user", prompt)])
        if self._rendered is not None and text.startswith(self._rendered):
            tokens = self.tokens[: self._rendered_tokens] + self._source.encode(text[len(self._rendered) :])
        else:
            tokens = self._source.encode(text)
        return Turn(self.messages, prompt, tokens)

    def fitting_turn(self, prompt: str, *, context: int, room: int) -> Turn:
        """Return the conversation with a user message added, without the oldest turns where it would leave less than
        `room` tokens of the context, or could not be encoded.

        Changes nothing. Raises ContextExceeded or BudgetExceeded where the message alone cannot be encoded.
        """
        try:
            turn = self.open_turn(prompt)
        except _TOO_LONG:
            if not turn_starts(self.messages):
                raise
        else:
            if len(turn.tokens) + room <= context or not turn_starts(self.messages):
                return turn
        return self._shortened(self.messages, prompt, most=int(KEPT_SHARE * context))

    def shorter_turn(self, context: int) -> Turn | None:
        """Return the running turn without the oldest ones, so that its answer can go on; None where that is no help.

        Changes nothing.
        """
        before, said = self.messages[:-1], len(self.reply_tokens)
        if not turn_starts(before):
            return None
        try:
            turn = self._shortened(before, self.messages[-1].content, most=int(KEPT_SHARE * context) - said)
        except _TOO_LONG:
            return None
        return turn if len(turn.tokens) + said < context else None

    def begin_reply(self, turn: Turn, *, said: Callable[[], str] = _nothing, reply: Sequence[int] = ()) -> None:
        """Take over a turn. `said` tells the answer so far, of which `reply` are the tokens."""
        self._prompt = self._source.render(turn.messages)
        self._now = (turn.messages, said)
        self._prompt_tokens = len(turn.tokens)
        self.tokens = [*turn.tokens, *reply]
        self._rendered = None

    def end_reply(self, text: str, *, ends: frozenset[int]) -> None:
        """Record the assistant's message: `text` is what the user was shown of the tokens after the prompt."""
        self._now = ((*self.messages, Message("assistant", text)), _nothing)
        generated = self.reply_tokens
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

    def _shortened(self, before: Sequence[Message], prompt: str, *, most: int) -> Turn:
        """Return a user message behind as many of the newest turns before it as make at most `most` tokens of all.

        Without any turn where none fits. Everything is encoded afresh, as in a new conversation.
        """
        made: dict[int, list[int]] = {}

        def encoded(kept: tuple[Message, ...]) -> list[int]:
            return self._source.encode(self._source.render([*kept, Message("user", prompt)]))

        def fits(kept: tuple[Message, ...]) -> bool:
            try:
                made[len(kept)] = encoded(kept)
            except _TOO_LONG:
                return False
            return len(made[len(kept)]) <= most

        kept, dropped = without_oldest(before, fits=fits)
        return Turn(kept, prompt, made.get(len(kept)) or encoded(kept), dropped)
