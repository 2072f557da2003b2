"""Find out what text each token adds, and whether that is known token by token; decode tokens as they arrive.

The decoder of the `tokenizers` tokenizer defines the text.
"""

import codecs
import json
from collections.abc import Sequence
from enum import Enum
from itertools import takewhile

import tokenizers

from edgedecode.errors import InputError

_ANCHOR = "a"
_SPACE_MARK = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
_TOKEN_BY_TOKEN = {"Replace", "Metaspace", "WordPiece", "Strip"}


class Layout(Enum):
    """How tokens combine to text."""

    BYTES = "bytes"  # each token is some bytes of UTF-8 (GPT-2, Llama 3, Qwen)
    TEXTS = "texts"  # each token has its own text; only the first is special (SentencePiece, WordPiece)
    FALLBACK = "fallback"  # as TEXTS, but a run of byte tokens is decoded together (Llama 2, Phi-3, Gemma)
    WHOLE = "whole"  # any token may change any text: nothing is known before the end (CTC, unknown decoders)


class Pieces:
    """The bytes or text of every token, cached; shared by all streams of a tokenizer."""

    __slots__ = ("_alphabet", "_bytes", "_decoder", "_inner", "_texts", "layout")

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        """Read the decoder of `inner`, which must not change afterwards."""
        self._inner = inner
        self._decoder = inner.decoder
        self.layout = _layout(component_steps(self._decoder))
        if self.layout in (Layout.TEXTS, Layout.FALLBACK) and not self.decode([_ANCHOR]):
            self.layout = Layout.WHOLE
        self._alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def token(self, id: int) -> str | None:
        """Return the token as the vocabulary spells it, None if the id is unknown. Raises InputError for a non-id."""
        try:
            return self._inner.id_to_token(id)
        except (OverflowError, TypeError) as error:
            raise InputError(f"{id!r} is not a token id") from error

    def decode(self, tokens: list[str]) -> str:
        """Return the text of a complete sequence of tokens."""
        return str(self._decoder.decode(tokens)) if self._decoder else " ".join(tokens)

    def bytes_of(self, id: int) -> bytes:
        """Return the bytes of a token under `Layout.BYTES`; empty for an unknown id."""
        data = self._bytes.get(id)
        if data is None:
            token = self.token(id) or ""
            try:
                data = bytes([self._alphabet[character] for character in token])
            except KeyError:  # an added token is stored as plain text, not in the byte alphabet
                data = token.encode()
            self._bytes[id] = data
        return data

    def text_of(self, id: int) -> str | None:
        """Return the text of a token that is not the first; None for a byte token and for an unknown id."""
        try:
            return self._texts[id]
        except KeyError:
            token = self.token(id)
            text = None if token is None or self.is_byte(token) else self.continuation([token])
            self._texts[id] = text
            return text

    def own_bytes(self, id: int) -> bytes:
        """Return the UTF-8 bytes of a token's own text, as after other tokens; empty for an unknown id."""
        if self.layout is Layout.BYTES:
            return self.bytes_of(id)
        token = self.token(id)
        if token is None:
            return b""
        if self.is_byte(token):
            byte = self.byte(token)
            return token.encode() if byte is None else bytes([byte])
        return (self.decode([token]) if self.layout is Layout.WHOLE else self.text_of(id) or "").encode()

    def continuation(self, tokens: list[str]) -> str:
        """Return the text of tokens that follow others."""
        return self.decode([_ANCHOR, *tokens])[len(self.decode([_ANCHOR])) :]

    def is_byte(self, token: str) -> bool:
        """Return whether a token may be one byte of a character (`<0xE2>`) and must be decoded with its neighbours."""
        return self.layout is Layout.FALLBACK and _is_fallback(token)

    def byte(self, token: str) -> int | None:
        """Return the byte that such a token is; None for others, and for one that is spelled alike, as `<0xZZ>`."""
        try:
            return int(token[3:5], 16) if self.is_byte(token) else None
        except ValueError:
            return None

    def spells_bytes(self, token: str) -> bool:
        """Return whether a token of `Layout.BYTES` is spelled in the byte alphabet."""
        return all(character in self._alphabet for character in token)

    def is_single_byte(self, token: str) -> bool:
        """Return whether a token stands for one byte, in any layout."""
        if self.layout is Layout.BYTES:
            return len(token) == 1 and token in self._alphabet
        return _is_fallback(token)


def _is_fallback(token: str) -> bool:
    """Return whether a token is spelled as a byte: `<0xE2>`."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def component_steps(component: object) -> list[dict[str, object]]:
    """Return the steps of a normalizer, pre-tokenizer or decoder in order, sequences flattened; empty for None."""
    if component is None:
        return []
    state = getattr(component, "__getstate__")()  # noqa: B009 (typed as object)
    return _flatten(json.loads(state))


def _flatten(step: dict[str, object]) -> list[dict[str, object]]:
    if step["type"] != "Sequence":
        return [step]
    inner = next(value for value in step.values() if isinstance(value, list))
    return [flat for one in inner for flat in _flatten(one)]


def _layout(steps: list[dict[str, object]]) -> Layout:
    types = [str(step["type"]) for step in steps]
    if types == ["ByteLevel"]:
        return Layout.BYTES
    fuse = types.index("Fuse") if "Fuse" in types else len(types)
    # After Fuse, only the start of the text may change: emitted text is never taken back.
    if any(step["type"] != "Strip" or step["stop"] != 0 for step in steps[fuse + 1 :]):
        return Layout.WHOLE
    if "ByteFallback" in types[:fuse]:
        known = types[fuse - 1] == "ByteFallback" and all(step == _SPACE_MARK for step in steps[: fuse - 1])
        return Layout.FALLBACK if known else Layout.WHOLE
    return Layout.TEXTS if _TOKEN_BY_TOKEN.issuperset(types[:fuse]) else Layout.WHOLE


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's byte alphabet (`bytes_to_unicode` in its encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


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
