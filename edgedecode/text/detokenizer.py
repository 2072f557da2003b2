"""Decode token ids to text as they arrive."""

import codecs
import re
from collections.abc import Sequence
from itertools import takewhile

from edgedecode.errors import InputError

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


class StopStrings:
    """Cut a stream at the first stop string, and hold back a tail that may begin one.

    The match with the earliest position in the text wins, as in llama.cpp and OpenAI's API, however the text was split
    into pushes. Where two start at the same position, the shorter is reported, because it is complete first. A match
    may therefore wait until an earlier, longer candidate is decided. The text held back is always shorter than the
    longest stop string.
    """

    __slots__ = ("_held", "_longest", "_matched", "_pattern", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for any of `stops`; with none, all text passes through. An empty string raises `InputError`."""
        if isinstance(stops, str):
            raise InputError(f"stop strings are a list of strings, not the string {stops!r}: use [{stops!r}]")
        for stop in stops:
            if stop == "":
                raise InputError("a stop string cannot be empty: use a string of one character or more")
        self._stops = tuple(sorted(set(stops), key=len))
        self._longest = len(self._stops[-1]) if self._stops else 0
        self._pattern = re.compile("|".join(map(re.escape, self._stops)))
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._matched

    def push(self, text: str) -> str:
        """Return the text that is now safe to show; nothing once a stop string has matched."""
        if self._matched is not None or not text:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        match = self._pattern.search(text)
        end = match.start() if match else len(text)
        candidate = self._candidate(text, end=end)
        if candidate is not None:
            self._held = text[candidate:]
            return text[:candidate]
        self._held = ""
        self._matched = match.group() if match else None
        return text[:end]

    def flush(self) -> str:
        """Return the text held back: at the end of the text, nothing can complete a candidate any more."""
        rest, self._held = self._held, ""
        match = self._pattern.search(rest) if rest else None
        if match is None:
            return rest
        self._matched = match.group()
        return rest[: match.start()]

    def _candidate(self, text: str, *, end: int) -> int | None:
        """Return the first position before `end` from which the rest of the text begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), end):
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return None
