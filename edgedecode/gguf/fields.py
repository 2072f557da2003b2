"""Reads GGUF's typed fields from bytes, with bounds checks."""

from __future__ import annotations

import mmap
import struct
from array import array
from typing import TypeAlias

import numpy as np

Value: TypeAlias = int | float | str
"""A field's value. For an array: the number of its elements, or for per-layer integers the largest."""
Array: TypeAlias = "tuple[str, ...] | tuple[float, ...]"
"""An array's elements: texts or numbers."""

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type → format letter of `struct`."""
UINT32, INT32, FLOAT32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
TOKENS = "tokenizer.ggml.tokens"
PER_LAYER = 4096
"""Integer arrays up to this length are read as per-layer values; longer ones, such as token types, are skipped."""
MOST_NBYTES, MOST_ELEMENTS = 1 << 26, 1 << 21
"""Limits of the bytes before the data, and of the array elements that are read, in total.

A vocabulary of 262,000 tokens with its merges takes 20 MB and 1.3 million elements. A sparse file can claim any size.
"""
_LENGTH = struct.Struct("<Q")


class Truncated(Exception):
    """The bytes end too early or are inconsistent; the message says where."""


class FieldReader:
    """Reads a GGUF header sequentially; `offset` is the next byte. Every method raises Truncated past the end.

    keep_arrays: store the elements of every array in `arrays`, by field name; else they are skipped.
    """

    def __init__(self, content: mmap.mmap, *, keep_arrays: bool = False) -> None:
        self._content = content
        self._size = min(len(content), MOST_NBYTES)
        self._elements = 0
        self._keep_arrays = keep_arrays
        self.offset = 0
        self.arrays: dict[str, Array] = {}
        self.types: dict[str, int] = {}
        """The GGUF value type of every field read so far."""
        self.element_types: dict[str, int] = {}
        """The GGUF value type of the elements of every array read so far."""
        self.layers: dict[str, tuple[int, ...]] = {}
        """Integer arrays short enough to be per-layer values."""
        self.twice: bytes | None = None
        """A token's text that occurs twice in the vocabulary."""

    def start(self, most: int) -> bytes:
        """Return up to `most` bytes of the beginning."""
        return self._content[:most]

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start = self._advance(count)
        return self._content[start : self.offset]

    def integer(self, letter: str) -> int:
        """Return the next little-endian number of `struct` format `letter`."""
        form = "<" + letter
        (value,) = struct.unpack_from(form, self._content, self._advance(struct.calcsize(form)))
        return int(value)

    def text(self) -> str:
        """Return the next string, undecodable bytes replaced."""
        return self.take(self.integer("Q")).decode("utf-8", "replace")

    def field(self) -> tuple[str, Value]:
        """Return the next key and value."""
        key = self.text()
        if not key:
            raise Truncated("a field has no name")
        kind = self.types[key] = self.integer("I")
        return key, self._value(kind, key)

    def _value(self, kind: int, key: str) -> Value:
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            return self._array(self.integer("I"), self.integer("Q"), key)
        form = "<" + self._letter(kind, key)
        (value,) = struct.unpack_from(form, self._content, self._advance(struct.calcsize(form)))
        return float(value) if isinstance(value, float) else int(value)

    def _array(self, kind: int, count: int, key: str) -> int:
        self.element_types[key] = kind
        letter = "" if kind == TEXT else self._letter(kind, key)
        nbytes = struct.calcsize("<" + letter) if letter else 8  # a text takes at least its length prefix
        if count * nbytes > self._size:
            raise Truncated(f"the field {key[:40]!r} claims {count} elements")
        per_layer = letter not in ("", "f", "d") and 0 < count <= PER_LAYER
        if kind == TEXT or per_layer or self._keep_arrays:
            self._elements += count
            if self._elements > MOST_ELEMENTS:
                raise Truncated(f"its arrays up to {key[:40]!r} have {self._elements} elements")
        if kind == TEXT:
            self._texts(count, key)
            return count
        start = self._advance(count * nbytes)
        if self._keep_arrays:
            self.arrays[key] = struct.unpack_from(f"<{count}{letter}", self._content, start)
        if not per_layer:
            return count
        values = self.layers[key] = struct.unpack_from(f"<{count}{letter}", self._content, start)
        return int(max(values))

    def _texts(self, count: int, key: str) -> None:
        """Read an array of texts. Must be fast: a vocabulary has hundreds of thousands."""
        content, offset, end, length_at = self._content, self.offset, self._size, _LENGTH.unpack_from
        starts, hashes, texts = array("Q"), array("q"), list[str]()
        for index in range(count):
            if offset + _LENGTH.size > end:
                raise Truncated(f"text {index} of {count} is missing at {offset}")
            start = offset + _LENGTH.size
            offset = start + length_at(content, offset)[0]
            if offset > end:
                raise Truncated(f"text {index} of {count} ends at {offset}, beyond the file")
            if key == TOKENS:
                starts.append(start)
                hashes.append(hash(content[start:offset] or _empty(index)))
            if self._keep_arrays:
                texts.append(content[start:offset].decode("utf-8", "replace"))
        self.offset = offset
        if key == TOKENS:
            self.twice = self._duplicate(starts, hashes)
        if self._keep_arrays:
            self.arrays[key] = tuple(texts)

    def _duplicate(self, starts: array[int], hashes: array[int]) -> bytes | None:
        """Return a text that occurs twice. Compares hashes, since the texts would take many times their memory."""
        values = np.frombuffer(hashes, np.int64)
        order = np.argsort(values, kind="stable")
        for index in np.flatnonzero(np.diff(values[order]) == 0):
            one, other = (self._token(int(token), starts) for token in order[index : index + 2])
            if one == other:
                return one
        return None

    def _token(self, index: int, starts: array[int]) -> bytes:
        start = starts[index]
        (nbytes,) = _LENGTH.unpack_from(self._content, start - _LENGTH.size)
        return self._content[start : start + nbytes] or _empty(index)

    def _letter(self, kind: int, key: str) -> str:
        if kind not in FORMATS:
            raise Truncated(f"the field {key[:40]!r} has the unknown type {kind}")
        return FORMATS[kind]

    def _advance(self, count: int) -> int:
        start = self.offset
        if count > self._size - start:
            raise Truncated(f"{count} bytes are missing at {start}")
        self.offset = start + count
        return start


def _empty(index: int) -> bytes:
    """Return llama.cpp's name for an empty token."""
    return b"[EMPTY_%d]" % index
