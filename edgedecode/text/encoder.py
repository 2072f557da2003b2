"""Turns messages into tokens under the memory budget: text that cannot fit the context is refused before encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from edgedecode.errors import ContextExceeded
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.memory.process_memory import release_pages

from .messages import Message
from .tokenizer import Tokenizer

__all__ = ["Encoder", "TextSource"]

BYTE_NBYTES = 128
TOKEN_NBYTES = 320
"""Memory that encoding needs for each byte of the normalized text and for each token, until it returns.

Bounds of what was measured with tokenizers 0.23 on a million bytes: 91 to 128 a byte where few tokens are made of many,
430 where each is a token of its own.
"""
TEXT_NBYTES = 24
"""Memory for each byte of a conversation's text, in addition: six copies, as wide as the widest character."""
PLANNED_BYTES_PER_TOKEN, PLANNED_TOKENS = 5, 1.25
"""Bytes of text, and tokens, for each of the context's that a session reserves when it opens: a conversation is encoded
whole when it just no longer fits, and prose has 4 to 4.5 bytes a token. Longer text takes a further lease."""
PIECE_CHARS = 256
"""Characters encoded at a time where only the number of tokens is needed."""
OVERFLOW_FACTOR = 2
"""Encoding in pieces yields more tokens than encoding whole; a count beyond this many times the context is refused."""


class TextSource(Protocol):
    """What turns messages into text and text into tokens."""

    def render(self, messages: Sequence[Message]) -> str: ...
    def encode(self, text: str, *, add_special: bool = False) -> list[int]: ...


class Encoder:
    """Implements `TextSource` for a context of `capacity` tokens. Raises BudgetExceeded when that does not fit.

    Texts are encoded whole, since only then their tokens are certain; long ones are counted in pieces before.
    longest: the longest context that could be asked for instead.
    """

    def __init__(self, tokenizer: Tokenizer, *, capacity: int, longest: int, budget: Budget) -> None:
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._remedy = "shorten it" + (
            f", or raise --ctx-size (this model allows {longest})" if longest > capacity else ""
        )
        self._budget = budget
        self._piece = _piece(tokenizer)
        self._most_nbytes = 4 * capacity * tokenizer.longest_token  # 4: characters to bytes, what a normalizer drops
        self._usual = PLANNED_BYTES_PER_TOKEN * capacity
        prompts = prompts_holder(tokenizer, capacity)
        self._planned = prompts.nbytes
        self._lease = budget.reserve(*prompts)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation. Raises ContextExceeded and BudgetExceeded before it is made."""
        size = sum(_utf8_nbytes(message.content) for message in messages)
        self._check_length(size)
        self._lease.resize(self._planned + TEXT_NBYTES * max(0, size - self._usual))
        return self._tokenizer.render(messages, most_nbytes=self._lease.nbytes)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return the text's tokens. Raises ContextExceeded and BudgetExceeded before they are made."""
        with self._room(self._needed(text)):
            return self._tokenizer.encode(text, add_special=add_special)

    def close(self) -> None:
        """Give the memory back."""
        self._lease.release()

    def _needed(self, text: str) -> int:
        """Return what encoding a text takes; one that is long for its context is counted."""
        size = _utf8_nbytes(text)
        self._check_length(size)
        most = round(size * self._tokenizer.growth)
        if _nbytes(most, most) <= self._planned:
            return 0
        normalized, tokens = self._counted(text)
        return _nbytes(normalized, min(normalized, tokens + tokens // 4))

    def _counted(self, text: str) -> tuple[int, int]:
        """Return about how many bytes the normalized text has, and how many tokens. Raises ContextExceeded."""
        normalized = tokens = 0
        for start in range(0, len(text), self._piece):
            piece = text[start : start + self._piece]
            normalized += _utf8_nbytes(self._tokenizer.normalized(piece))
            tokens += len(self._tokenizer.encode(piece))
            if tokens > OVERFLOW_FACTOR * self._capacity:
                raise ContextExceeded(
                    f"the prompt has more than {OVERFLOW_FACTOR * self._capacity} tokens, the context holds "
                    f"{self._capacity}: {self._remedy}"
                )
        return normalized, tokens

    def _check_length(self, size: int) -> None:
        if size > self._most_nbytes:
            raise ContextExceeded(
                f"the prompt has {size} bytes of text, a context of {self._capacity} tokens cannot hold more "
                f"than {self._most_nbytes}: {self._remedy}"
            )

    @contextmanager
    def _room(self, nbytes: int) -> Iterator[None]:
        """Lease the excess over the planned memory while the block runs."""
        if nbytes <= self._planned:
            yield
            return
        with self._budget.reserve("encoding a prompt", nbytes - self._planned):
            try:
                yield
            finally:
                release_pages()  # else they stay with the process


def prompts_holder(tokenizer: Tokenizer, capacity: int) -> Holder:
    """Return what encoding usual prompts for a context of `capacity` tokens takes."""
    piece_nbytes = round(4 * _piece(tokenizer) * tokenizer.growth)
    usual = PLANNED_BYTES_PER_TOKEN * capacity
    usual_nbytes = _nbytes(usual, round(PLANNED_TOKENS * capacity)) + TEXT_NBYTES * usual
    return Holder("prompts", max(_nbytes(piece_nbytes, piece_nbytes), usual_nbytes))


def _piece(tokenizer: Tokenizer) -> int:
    """Return the characters of a long text that are counted at a time."""
    return max(PIECE_CHARS, 2 * tokenizer.longest_token)


def _nbytes(size: int, tokens: int) -> int:
    return BYTE_NBYTES * size + TOKEN_NBYTES * tokens


def _utf8_nbytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
