"""Decode token ids to text as they arrive."""

import codecs
from collections.abc import Sequence
from itertools import takewhile

from .token_text import Layout, Pieces


class Detokenizer:
    """Turn a stream of ids into a stream of text.

    - The concatenation of all pushes and the flush equals `Tokenizer.decode` of all the ids, for any ids, but for a
      character that the last ids leave incomplete: it is left out, where `decode` writes U+FFFD, which no token wrote.
    - Emitted text is never taken back and never ends within a character.
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

    def preview(self, ids: Sequence[int]) -> str:
        """Return what `push` would, without adding the ids."""
        utf8, run, started = self._utf8.getstate(), list(self._run), self._started
        text = self.push(ids)
        self._utf8.setstate(utf8)
        self._run, self._started = run, started
        return text

    def flush(self) -> str:
        """Return the rest of the text, without an incomplete character at its end, and start a new one."""
        del self._run[len(self._run) - self._incomplete() :]
        rest = self._text_of_run()
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

    def _incomplete(self) -> int:
        """Return how many byte tokens at the end of the run begin a character that has no end."""
        last = takewhile(lambda byte: byte is not None, map(self._pieces.byte, reversed(self._run)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(bytes(byte for byte in last if byte is not None)[::-1])
        return len(decoder.getstate()[0])

    def _text_of_run(self) -> str:
        if not self._run:
            return ""
        return self._pieces.continuation(self._run) if self._started else self._pieces.decode(self._run)
