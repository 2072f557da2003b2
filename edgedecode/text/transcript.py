"""The tokens of a conversation: rendered messages, with the ids that the model generated kept as they are."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index

from edgedecode.errors import BudgetExceeded, ContextExceeded, EdgeDecodeError, InputError

from .control_tokens import rest_of
from .encoder import TextSource
from .messages import Message
from .tokenizer import Tokenizer

KEPT_SHARE = 0.6
"""Share of the context kept at most when turns are dropped. Lower: turns are dropped less often, but more at a time."""
_TOO_LONG = (ContextExceeded, BudgetExceeded)
"""Raised for a text that exceeds the context or the memory for encoding; dropping turns may help."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message with the conversation before it, and the tokens up to the assistant's header.

    message: None for a bare prompt, which is not part of the conversation.
    """

    before: tuple[Message, ...]
    message: Message | None
    tokens: list[int]
    dropped: int = 0
    """Number of oldest turns left out of `before`."""
    reply: Sequence[int] = ()
    """The tokens of its answer so far."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.before if self.message is None else (*self.before, self.message)


def _nothing() -> str:
    return ""


class Transcript:
    """Messages and their tokens.

    If the old rendering is a prefix of the new one, a turn encodes only the new text, so that generated ids are kept
    even where encoding their text again would give different ones. Otherwise everything is encoded again, and the
    caller continues from the first id that differs.
    """

    def __init__(
        self, tokenizer: Tokenizer, messages: Sequence[Message] = (), *, source: TextSource | None = None
    ) -> None:
        """Start with these messages; `source` renders and encodes, None: the tokenizer itself."""
        self._tokenizer = tokenizer
        self._source: TextSource = source or tokenizer
        self._now: tuple[tuple[Message, ...], Callable[[], str]] = (tuple(messages), _nothing)
        """The messages, and the partial answer to the last: replaced together, since other threads read them."""
        self.tokens: list[int] = []
        self._rendered: str | None = None
        """The text of exactly the first `_rendered_tokens` tokens; None: nothing to reuse."""
        self._rendered_tokens = 0
        self._prompt = ""
        self._prompt_tokens = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, without an unfinished answer."""
        return self._now[0]

    @property
    def heard(self) -> tuple[Message, ...]:
        """The messages, with the text so far of an unfinished answer."""
        messages, said = self._now
        text = said()
        return (*messages, Message("assistant", text)) if text else messages

    def start_over(self, messages: Sequence[Message]) -> None:
        """Replace the messages; `tokens` stay, since they describe the KV cache."""
        self._now = (tuple(messages), _nothing)
        self._rendered = None

    @property
    def reply_tokens(self) -> list[int]:
        """The tokens generated since the latest turn began."""
        return self.tokens[self._prompt_tokens :]

    def open_turn(self, message: Message) -> Turn:
        """Return the conversation with a message added.

        Changes nothing: the caller commits the turn with `begin_reply`.
        """
        text = self._source.render([*self.messages, message])
        if self._rendered is not None and text.startswith(self._rendered):
            tokens = self.tokens[: self._rendered_tokens] + self._source.encode(rest_of(text, len(self._rendered)))
        else:
            tokens = self._source.encode(text)
        return Turn(self.messages, message, tokens)

    def fitting_turn(self, message: Message, *, context: int, room: int) -> Turn:
        """Return the conversation with a message added, dropping the oldest turns if needed.

        Turns are dropped if fewer than `room` tokens of the context would be left, or the text could not be encoded.
        Changes nothing. Raises ContextExceeded or BudgetExceeded if the message alone cannot be encoded.
        """
        try:
            turn = self.open_turn(message)
        except _TOO_LONG:
            if not turn_starts(self.messages):
                raise
        else:
            if len(turn.tokens) + room <= context or not turn_starts(self.messages):
                return turn
        return self._shortened(self.messages, message, most=int(KEPT_SHARE * context))

    def shorter_turn(self, turn: Turn, *, context: int) -> Turn | None:
        """Return the running turn without the oldest turns, so that its answer can go on; None if it still cannot.

        Changes nothing.
        """
        if turn.message is None or not turn_starts(turn.before):
            return None
        reply = self.reply_tokens
        try:
            shorter = self._shortened(turn.before, turn.message, most=int(KEPT_SHARE * context) - len(reply))
        except _TOO_LONG:
            return None
        return replace(shorter, reply=reply) if len(shorter.tokens) + len(reply) < context else None

    @contextmanager
    def answering(self, turn: Turn, text: Callable[[], str], *, ends: frozenset[int]) -> Iterator[None]:
        """Record the answer of a turn that is generated meanwhile. text: ends the answer and returns all its text.

        An answer that was closed or interrupted keeps its text so far. One without text leaves the messages as they
        were, as does one that failed. That of a bare prompt is not recorded.
        """
        if turn.message is None:
            yield
            return
        before = self.messages
        try:
            yield
        except EdgeDecodeError:
            self.start_over(before)
            raise
        except BaseException:
            if partial := text():
                self.end_reply(partial, ends=ends)
            else:
                self.start_over(before)
            raise
        self.end_reply(text(), ends=ends)

    def begin_reply(self, turn: Turn, *, said: Callable[[], str] = _nothing) -> None:
        """Commit a turn. `said` returns the text of the answer so far."""
        if turn.message is not None:
            self._prompt = self._source.render(turn.messages)
            self._now = (turn.messages, said)
        self._prompt_tokens = len(turn.tokens)
        self.tokens = [*turn.tokens, *turn.reply]
        self._rendered = None

    def end_reply(self, text: str, *, ends: frozenset[int]) -> None:
        """Record the assistant's message: `text` is the part of the generated text that the user was shown."""
        self._now = ((*self.messages, Message("assistant", text)), _nothing)
        generated = self.reply_tokens
        if generated and generated[-1] in ends:
            generated.pop()
        self._rendered = self._prompt + self._tokenizer.decode(generated, skip_special=False)
        self._rendered_tokens = self._prompt_tokens + len(generated)

    def bare_turn(self, prompt: str | Sequence[int]) -> Turn:
        """Return the turn of a text without the chat template, with the tokenizer's own leading tokens, or of its ids.

        Raises InputError for ids that the tokenizer does not have.
        """
        tokens = self._source.encode(prompt, add_special=True) if isinstance(prompt, str) else [*map(index, prompt)]
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._tokenizer.size:
            wrong = next(token for token in tokens if not 0 <= token < self._tokenizer.size)
            raise InputError(f"prompt: token id {wrong} is not in the vocabulary: 0 to {self._tokenizer.size - 1}")
        if not tokens:
            raise InputError("prompt is empty: without a chat template it needs at least one token")
        return Turn(self.messages, None, tokens)

    def _shortened(self, before: Sequence[Message], message: Message, *, most: int) -> Turn:
        """Return a turn of at most `most` tokens: a message with as many of the latest turns as fit.

        No turn is kept if none fits. Everything is encoded again, as in a new conversation.
        """
        encodings: dict[int, list[int]] = {}

        def encoded(kept: tuple[Message, ...]) -> list[int]:
            return self._source.encode(self._source.render([*kept, message]))

        def fits(kept: tuple[Message, ...]) -> bool:
            try:
                encodings[len(kept)] = encoded(kept)
            except _TOO_LONG:
                return False
            return len(encodings[len(kept)]) <= most

        kept, dropped = without_oldest(before, fits=fits)
        return Turn(kept, message, encodings.get(len(kept)) or encoded(kept), dropped)


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the index where each turn begins: a turn is a user message and everything up to the next user message.

    Leading system messages belong to no turn. Messages between them and the first user message form a turn.
    """
    head = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    return [place for place in range(head, len(messages)) if place == head or messages[place].role == "user"]


def without_oldest(
    messages: Sequence[Message], *, fits: Callable[[tuple[Message, ...]], bool]
) -> tuple[tuple[Message, ...], int]:
    """Drop the fewest oldest turns that make the messages fit; return the rest and the number of dropped turns.

    All turns are dropped if none can be kept. Leading system messages always stay. fits: called O(log turns) times;
    it must be monotonic, so that messages which fit also fit with fewer turns.
    """
    starts = turn_starts(messages)
    head = tuple(messages[: starts[0]]) if starts else tuple(messages)

    def kept(count: int) -> tuple[Message, ...]:
        return (*head, *messages[starts[count] :]) if count < len(starts) else head

    count = bisect_left(range(len(starts)), True, key=lambda count: fits(kept(count)))
    return kept(count), count
