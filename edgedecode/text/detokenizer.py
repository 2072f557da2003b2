"""Decode token ids to text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .token_text import Layout, Pieces

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turn a stream of ids into a stream of text.

    - The concatenation of all pushes and the flush equals `Tokenizer.decode` of all the ids, for any ids.
    - Emitted text is never taken back and never ends within a character; an incomplete character is emitted by
      `flush`, as U+FFFD.
    - The cost per token is constant, about two microseconds: no part of the text is decoded twice.

    Byte-level vocabularies emit each character as soon as it is complete. With SentencePiece byte fallback, a run of
    byte tokens is emitted when the next ordinary token ends it: one invalid byte turns the *entire* run into U+FFFD,
    so no part of it is certain earlier. A decoder whose text is not a concatenation over tokens (CTC, unknown kinds)
    emits everything at `flush`. tokenizers' DecodeStream (0.23) is not used: it has no flush, and raises on invalid
    byte runs.
    """

    __slots__ = ("_pieces", "_run", "_skip", "_started", "_utf8")

    def __init__(self, pieces: Pieces, *, skip: frozenset[int] = frozenset()) -> None:
        """Start an empty text; ids in `skip` add nothing to it."""
        self._pieces = pieces
        self._skip = skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._run: list[str] = []  # tokens whose text is not final yet
        self._started = False  # whether any text is final: until then, decoders strip a leading space

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` complete. Unknown ids add nothing. Raises InputError for an invalid id, as -1."""
        if self._pieces.layout is Layout.BYTES:
            bytes_of, skip = self._pieces.bytes_of, self._skip
            return self._utf8.decode(b"".join([bytes_of(id) for id in ids if id not in skip]))
        return "".join([self._step(id) for id in ids if id not in self._skip])

    def flush(self) -> str:
        """Return the rest of the text and start a new one."""
        rest = self._utf8.decode(b"", final=True) + self._text_of_run()
        self._utf8.reset()
        self._run = []
        self._started = False
        return rest

    def _step(self, id: int) -> str:
        if self._started and not self._run:
            text = self._pieces.text_of(id)
            if text is not None:
                return text
        token = self._pieces.token(id)
        if token is None:
            return ""
        self._run.append(token)
        if self._pieces.layout is Layout.WHOLE or self._pieces.is_byte(token):
            return ""
        text = self._text_of_run()
        if text or self._started:
            self._run = []
            self._started = True
        return text

    def _text_of_run(self) -> str:
        if not self._run:
            return ""
        return self._pieces.continuation(self._run) if self._started else self._pieces.decode(self._run)
