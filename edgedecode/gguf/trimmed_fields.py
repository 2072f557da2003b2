"""Encodes the fields of a GGUF file for a trimmed vocabulary; fields that do not concern tokens stay unchanged.

Keeps the texts, scores and types of the kept ids, and merges whose parts and result are kept. Ids of special tokens
become rows.
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

_START = 4 + 4 + 8
"""Bytes before the number of fields: magic, version, number of tensors."""
_LENGTH, _ARRAY = struct.Struct("<Q"), struct.Struct("<IQ")
_MERGES = "tokenizer.ggml.merges"
_PER_TOKEN = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_SPECIAL_LIST = "tokenizer.ggml.suppress_tokens"
_SPECIAL = ("tokenizer.ggml.", "_token_id")
"""Prefix and suffix of the fields with a special token's id."""
_DROPPED = ("tokenizer.huggingface.json", "tokenizer.rwkv.world")
"""Complete tokenizers in other formats."""
_ARRAYS = (TOKENS, _MERGES, *_PER_TOKEN, _SPECIAL_LIST)
_INTEGERS = frozenset(kind for kind, letter in FORMATS.items() if letter in "BbHhIiQq")


@dataclass(frozen=True, slots=True)
class _Field:
    """An encoded field of the file, and the offset of its value."""

    name: str
    kind: int
    content: bytes
    value: int

    @property
    def prefix(self) -> bytes:
        """The encoded name and type, to which another value may be appended."""
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
        """The offset of an array's first element."""
        return self.value + _ARRAY.size


def trimmed_fields(content: mmap.mmap, vocabulary: TrimmedVocabulary) -> list[bytes]:
    """Encode the fields of a file that `read_contents` accepted; fields about dropped tokens only are left out.

    Raises Truncated for an array with fewer elements than tokens, or with elements of a wrong type.
    """
    fields = {field.name: field for field in _walk(content)}
    trimming = _Trimming(vocabulary, fields)
    return [encoded for field in fields.values() if (encoded := trimming.encoded(field))]


class _Trimming:
    """Encodes each field for the trimmed vocabulary."""

    def __init__(self, vocabulary: TrimmedVocabulary, fields: Mapping[str, _Field]) -> None:
        for name in _ARRAYS:
            if name in fields and fields[name].kind != ARRAY:
                raise Truncated(f"{name} is not an array")
        self._ids = vocabulary.ids
        self._rows = {int(id): row for row, id in enumerate(vocabulary.ids)}
        self._texts = self._picked_texts(fields[TOKENS]) if TOKENS in fields else []
        self._known = frozenset(text[_LENGTH.size :] for text in self._texts)

    def encoded(self, field: _Field) -> bytes:
        """Return the field's new bytes; empty if it is dropped."""
        name = field.name
        if field.kind == ARRAY:
            return self._array(field)
        if name.endswith(".vocab_size") and not name.startswith(_SPECIAL[0]):
            return field.prefix + _number(field, len(self._ids))
        if name.startswith(_SPECIAL[0]) and name.endswith(_SPECIAL[1]):
            return self._special(field)
        return b"" if name in _DROPPED else field.content

    def _array(self, field: _Field) -> bytes:
        if field.name == TOKENS:
            return _joined(field, self._texts)
        if field.name == _MERGES:
            return _joined(field, [text for text in _texts(field) if self._still_merges(text[_LENGTH.size :])])
        if field.name in _PER_TOKEN:
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
        return b"" if row is None else field.prefix + _number(field, row)

    def _picked_texts(self, field: _Field) -> list[bytes]:
        kept = np.zeros(field.count, np.bool_)
        kept[self._checked(field)] = True
        return list(compress(_texts(field), kept.tolist()))

    def _checked(self, field: _Field) -> IntArray:
        """Return the kept ids. Raises Truncated if the array has fewer elements."""
        if field.count <= self._ids[-1]:
            raise Truncated(f"{field.name} has {field.count} elements, fewer than there are tokens")
        return self._ids

    def _still_merges(self, merge: bytes) -> bool:
        space = merge.find(b" ", 1)  # a part may begin with a space, as in llama.cpp
        left, right = merge[:space], merge[space + 1 :]
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
    """Yield an array's encoded texts, each including its length prefix."""
    if field.element != TEXT:
        raise Truncated(f"{field.name} does not hold texts")
    content, start = field.content, field.first
    for _ in range(field.count):
        end = start + _LENGTH.size + _LENGTH.unpack_from(content, start)[0]
        yield content[start:end]
        start = end


def _numbers(field: _Field) -> npt.NDArray[np.generic]:
    if field.element not in FORMATS:
        raise Truncated(f"{field.name} does not hold numbers")
    kind = np.dtype(f"<{FORMATS[field.element]}")
    numbers: npt.NDArray[np.generic] = np.frombuffer(field.content, kind, field.count, field.first)
    return numbers


def _joined(field: _Field, elements: Sequence[bytes]) -> bytes:
    return field.prefix + _ARRAY.pack(field.element, len(elements)) + b"".join(elements)


def _check_integers(field: _Field, kind: int) -> None:
    if kind not in _INTEGERS:
        raise Truncated(f"{field.name} does not hold integers")


def _number(field: _Field, value: int) -> bytes:
    """Encode a field's new value in its integer type. Raises Truncated for another type, or one that is too small."""
    _check_integers(field, field.kind)
    try:
        return struct.pack(f"<{FORMATS[field.kind]}", value)
    except struct.error:
        raise Truncated(f"{field.name} is too small for {value}") from None
