"""The fields of a GGUF file for a part of its vocabulary, encoded; what does not speak of tokens stays as it stands.

Tokens, their scores and types are those of the ids that are kept; a merge stays where its parts and its result do; ids
of special tokens become rows.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary

from .fields import ARRAY, FORMATS, TEXT, TOKENS, FieldReader, Truncated

__all__ = ["trimmed_fields"]

_START = 4 + 4 + 8
"""Bytes before the number of fields: magic, version, number of tensors."""
_LENGTH, _ARRAY = struct.Struct("<Q"), struct.Struct("<IQ")
_MERGES = "tokenizer.ggml.merges"
_ONE_A_TOKEN = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_SPECIAL_LIST = "tokenizer.ggml.suppress_tokens"
_SPECIAL = ("tokenizer.ggml.", "_token_id")
"""How names of special tokens' ids begin and end."""
_LEFT_OUT = ("tokenizer.huggingface.json", "tokenizer.rwkv.world")
"""Whole tokenizers in another form."""
_ARRAYS = (TOKENS, _MERGES, *_ONE_A_TOKEN, _SPECIAL_LIST)
_INTEGERS = frozenset(kind for kind, letter in FORMATS.items() if letter in "BbHhIiQq")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field as it stands in the file: all its bytes, and where among them its value begins."""

    name: str
    kind: int
    content: bytes
    value: int

    @property
    def named(self) -> bytes:
        """Its name and type, before which other values may be put."""
        return self.content[: self.value]

    @property
    def element(self) -> int:
        """The type of an array's elements."""
        return int(_ARRAY.unpack_from(self.content, self.value)[0])

    @property
    def count(self) -> int:
        return int(_ARRAY.unpack_from(self.content, self.value)[1])

    @property
    def first(self) -> int:
        """Where an array's elements begin."""
        return self.value + _ARRAY.size


def trimmed_fields(content: mmap.mmap, vocabulary: TrimmedVocabulary) -> list[bytes]:
    """Encode the fields of a file that `read_contents` has read; what speaks of lost tokens alone is left out.

    Raises Truncated for an array that has fewer elements than there are tokens, or others than it should.
    """
    fields = {field.name: field for field in _walk(content)}
    trimming = _Trimming(vocabulary, fields)
    return [encoded for field in fields.values() if (encoded := trimming.encoded(field))]


class _Trimming:
    """What becomes of each field."""

    def __init__(self, vocabulary: TrimmedVocabulary, fields: Mapping[str, _Field]) -> None:
        for name in _ARRAYS:
            if name in fields and fields[name].kind != ARRAY:
                raise Truncated(f"{name} is not an array")
        self._ids = vocabulary.ids
        self._rows = {int(id): row for row, id in enumerate(vocabulary.ids)}
        self._texts = self._picked_texts(fields[TOKENS]) if TOKENS in fields else []
        self._known = frozenset(text[_LENGTH.size :] for text in self._texts)

    def encoded(self, field: _Field) -> bytes:
        """Return the field's new bytes; none where it goes."""
        name = field.name
        if field.kind == ARRAY:
            return self._array(field)
        if name.endswith(".vocab_size") and not name.startswith(_SPECIAL[0]):
            return field.named + _number(field, len(self._ids))
        if name.startswith(_SPECIAL[0]) and name.endswith(_SPECIAL[1]):
            return self._special(field)
        return b"" if name in _LEFT_OUT else field.content

    def _array(self, field: _Field) -> bytes:
        if field.name == TOKENS:
            return _joined(field, self._texts)
        if field.name == _MERGES:
            return _joined(field, [text for text in _texts(field) if self._still_merges(text[_LENGTH.size :])])
        if field.name in _ONE_A_TOKEN:
            return _joined(field, [number.tobytes() for number in _numbers(field)[self._checked(field)]])
        if field.name == _SPECIAL_LIST:
            _check_integers(field, field.element)
            rows = [self._rows[id] for id in _numbers(field).tolist() if id in self._rows]
            return _joined(field, [struct.pack(f"<{FORMATS[field.element]}", row) for row in rows])
        return field.content

    def _special(self, field: _Field) -> bytes:
        _check_integers(field, field.kind)
        (id,) = struct.unpack_from(f"<{FORMATS[field.kind]}", field.content, field.value)
        row = self._rows.get(int(id))
        return b"" if row is None else field.named + _number(field, row)

    def _picked_texts(self, field: _Field) -> list[bytes]:
        kept = np.zeros(field.count, np.bool_)
        kept[self._checked(field)] = True
        return list(compress(_texts(field), kept.tolist()))

    def _checked(self, field: _Field) -> IntArray:
        """Return the ids that are kept. Raises Truncated where the array has fewer elements."""
        if field.count <= self._ids[-1]:
            raise Truncated(f"{field.name} has {field.count} elements, and there are more tokens")
        return self._ids

    def _still_merges(self, merge: bytes) -> bool:
        place = merge.find(b" ", 1)  # a part may begin with a space, as llama.cpp has it
        left, right = merge[:place], merge[place + 1 :]
        return left in self._known and right in self._known and left + right in self._known


def _walk(content: mmap.mmap) -> Iterator[_Field]:
    reader = FieldReader(content)
    reader.take(_START)
    for _ in range(reader.integer("Q")):
        start = reader.offset
        name, _value = reader.field()
        (length,) = _LENGTH.unpack_from(content, start)
        yield _Field(name, reader.types[name], content[start : reader.offset], _LENGTH.size + length + 4)


def _texts(field: _Field) -> Iterator[bytes]:
    """Yield an array's texts, each with its length before it, as they are encoded."""
    if field.element != TEXT:
        raise Truncated(f"{field.name} holds no texts")
    content, start = field.content, field.first
    for _ in range(field.count):
        end = start + _LENGTH.size + _LENGTH.unpack_from(content, start)[0]
        yield content[start:end]
        start = end


def _numbers(field: _Field) -> npt.NDArray[np.generic]:
    if field.element not in FORMATS:
        raise Truncated(f"{field.name} holds no numbers")
    kind = np.dtype(f"<{FORMATS[field.element]}")
    numbers: npt.NDArray[np.generic] = np.frombuffer(field.content, kind, field.count, field.first)
    return numbers


def _joined(field: _Field, elements: Sequence[bytes]) -> bytes:
    return field.named + _ARRAY.pack(field.element, len(elements)) + b"".join(elements)


def _check_integers(field: _Field, kind: int) -> None:
    if kind not in _INTEGERS:
        raise Truncated(f"{field.name} holds no integers")


def _number(field: _Field, value: int) -> bytes:
    """Encode a field's new value, of the same integer type. Raises Truncated where that is another, or too small."""
    _check_integers(field, field.kind)
    try:
        return struct.pack(f"<{FORMATS[field.kind]}", value)
    except struct.error:
        raise Truncated(f"{field.name} is too small for {value}") from None
