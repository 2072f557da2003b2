"""Encode messages under the memory budget. Text that cannot fit the context is refused before it is encoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from edgedecode.errors import BudgetExceeded, ContextExceeded, room_for
from edgedecode.memory.budget import Budget, Holder, Lease
from edgedecode.memory.process_memory import release_pages

from .chat_template import NOTHING
from .messages import Message
from .tokenizer import Tokenizer

BYTE_NBYTES = 128
TOKEN_NBYTES = 320
"""Bytes that encoding needs per byte of normalized text and per token, until it returns.

Upper bounds of measurements with tokenizers 0.23 on a million bytes: 91 to 128 per byte where a token has many bytes,
430 where each byte is its own token.
"""
TEXT_NBYTES = 24
"""Additional memory per byte of a conversation's text: six copies, each as wide as the widest character."""
PLANNED_BYTES_PER_TOKEN, PLANNED_TOKENS = 5, 1.25
"""Bytes of text, and tokens, per context token that a session reserves when it opens. A conversation is still encoded
in full when it just no longer fits, and prose has 4 to 4.5 bytes per token. Longer text takes a further lease."""
PIECE_CHARS = 256
"""Characters encoded at a time where only the number of tokens is needed."""
OVERFLOW_FACTOR = 2
"""Encoding in pieces yields more tokens than encoding at once: a count beyond this many contexts is refused."""


class TextSource(Protocol):
    """Renders messages to text and encodes text to tokens."""

    def render(self, messages: Sequence[Message]) -> str: ...
    def encode(self, text: str, *, add_special: bool = False) -> list[int]: ...


class Encoder:
    """A `TextSource` for a context of `capacity` tokens. Raises BudgetExceeded if its memory does not fit.

    Texts are encoded in one call, since pieces would yield other tokens; the tokens of long texts are counted in
    pieces first. longest: the largest context that the model allows. in_turn: calls its argument where everything that
    the budget may reclaim can be reclaimed. arguments: further variables of the chat template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        capacity: int,
        longest: int,
        budget: Budget,
        arguments: Mapping[str, object] = NOTHING,
        in_turn: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        self._tokenizer, self._arguments = tokenizer, arguments
        self._capacity, self._longest = capacity, longest
        self._budget, self._in_turn = budget, in_turn
        self._piece = _piece(tokenizer)
        self._most_nbytes = 4 * capacity * tokenizer.longest_token  # 4: characters to bytes, what a normalizer drops
        self._planned_size = PLANNED_BYTES_PER_TOKEN * capacity
        prompts = prompts_holder(tokenizer, capacity)
        self._planned = prompts.nbytes
        self._lease = budget.reserve(*prompts)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation. Raises ContextExceeded or BudgetExceeded before rendering it."""
        size = sum(_utf8_nbytes(each.content) + _utf8_nbytes(each.thought) for each in messages)
        self._check_length(size)
        self._resize(self._lease, self._planned + TEXT_NBYTES * max(0, size - self._planned_size))
        return self._tokenizer.render(messages, arguments=self._arguments, most_nbytes=self._lease.nbytes)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return the text's tokens. Raises ContextExceeded or BudgetExceeded before encoding it."""
        with self._room(self._needed(text)):
            return self._tokenizer.encode(text, add_special=add_special)

    def close(self) -> None:
        """Release the memory lease."""
        self._lease.release()

    def _needed(self, text: str) -> int:
        """Return the bytes that encoding a text needs, counting the tokens of one that is long for the context."""
        size = _utf8_nbytes(text)
        self._check_length(size)
        most = round(size * self._tokenizer.growth)
        if _nbytes(most, most) <= self._planned:
            return 0
        normalized, tokens = self._counted(text)
        return _nbytes(normalized, min(normalized, tokens + tokens // 4))

    def _counted(self, text: str) -> tuple[int, int]:
        """Return the approximate size of the normalized text in bytes and in tokens. Raises ContextExceeded."""
        normalized = tokens = 0
        for start in range(0, len(text), self._piece):
            piece = text[start : start + self._piece]
            normalized += _utf8_nbytes(self._tokenizer.normalized(piece))
            tokens += len(self._tokenizer.encode(piece))
            if tokens > OVERFLOW_FACTOR * self._capacity:
                whole = tokens * len(text) // min(len(text), start + self._piece)
                raise self._too_long(f"about {whole} tokens", whole)
        return normalized, tokens

    def _check_length(self, size: int) -> None:
        if size > self._most_nbytes:
            fewest = -(-size // (4 * self._tokenizer.longest_token))  # `_most_nbytes` in tokens
            raise self._too_long(f"{size} bytes of text, at least {fewest} tokens", fewest)

    def _too_long(self, found: str, tokens: int) -> ContextExceeded:
        remedy = room_for(tokens, context=self._capacity, longest=self._longest)
        return ContextExceeded.of(found, self._capacity, remedy=remedy)

    @contextmanager
    def _room(self, nbytes: int) -> Iterator[None]:
        """Lease the excess over the planned memory while the block runs."""
        if nbytes <= self._planned:
            yield
            return
        with self._budget.reserve("encoding a prompt", 0) as lease:
            self._resize(lease, nbytes - self._planned)
            try:
                yield
            finally:
                release_pages()  # otherwise the process keeps them

    def _resize(self, lease: Lease, nbytes: int) -> None:
        """Resize a lease, in the turn if memory is short, so that prompts need not wait for it otherwise."""
        try:
            lease.resize(nbytes)
        except BudgetExceeded:
            self._in_turn(lambda: lease.resize(nbytes))


def prompts_holder(tokenizer: Tokenizer, capacity: int) -> Holder:
    """Return the memory that encoding typical prompts for a context of `capacity` tokens needs."""
    piece_nbytes = round(4 * _piece(tokenizer) * tokenizer.growth)
    size = PLANNED_BYTES_PER_TOKEN * capacity
    prompt_nbytes = _nbytes(size, round(PLANNED_TOKENS * capacity)) + TEXT_NBYTES * size
    return Holder("prompts", max(_nbytes(piece_nbytes, piece_nbytes), prompt_nbytes))


def _piece(tokenizer: Tokenizer) -> int:
    """Return how many characters of a long text are encoded at a time to count its tokens."""
    return max(PIECE_CHARS, 2 * tokenizer.longest_token)


def _nbytes(size: int, tokens: int) -> int:
    return BYTE_NBYTES * size + TOKEN_NBYTES * tokens


def _utf8_nbytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
