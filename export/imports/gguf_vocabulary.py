"""Reads the vocabulary of a GGUF file. Missing values get llama.cpp's defaults (src/llama-vocab.cpp)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite

from edgedecode.errors import ExportError
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.tokenizer_kinds import GEMMA4

from ..gguf.pretokenizers import splits_of
from ..gguf.specials import Specials
from ..gguf.vocabulary import Kind, Vocabulary

_PREFIX = "tokenizer.ggml."
_KINDS = {int(kind): kind for kind in Kind}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|end_of_turn|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<turn|>",
    "<|tool_response>",
    "<|eot|>",
    "<EOT>",
    "_<EOT>",
)
"""Texts of tokens that end an answer even if no key names them."""
_DEFAULT_PRE = "default"
"""llama.cpp's pre-tokenizer for files that name none."""
_ADDS_BOS = "llama-bpe"
"""The pre-tokenizer for which llama.cpp adds BOS by default."""


def read_vocabulary(metadata: Metadata, *, name: str) -> Vocabulary:
    """Read tokens, types, merges and scores. Raises ExportError if the file has no tokens or a duplicate."""
    tokens = metadata.texts(_PREFIX + "tokens")
    if not tokens:
        raise ExportError(f"{name} lists no tokens: convert it again with its tokenizer")
    if len(set(tokens)) < len(tokens):
        twice = next(token for token, count in Counter(tokens).items() if count > 1)
        raise ExportError(f"{name} lists the token {twice[:40]!r} twice: convert it again")
    model = metadata.text(_PREFIX + "model")
    return Vocabulary(
        model=model,
        pre=metadata.text(_PREFIX + "pre"),
        tokens=tokens,
        kinds=_kinds(metadata, len(tokens), name=name),
        merges=metadata.texts(_PREFIX + "merges"),
        scores=_counted(metadata.numbers(_PREFIX + "scores"), len(tokens), what="scores", name=name),
        space_prefix=metadata.flag(_PREFIX + "add_space_prefix", usual=model == "llama"),
    )


def read_specials(metadata: Metadata, vocabulary: Vocabulary, *, name: str) -> Specials:
    """Read the special ids. Raises ExportError for an id outside the vocabulary."""
    model, splits = vocabulary.model, splits_of(vocabulary.pre)
    added = splits is not None and splits.name == _ADDS_BOS
    named = [_id(metadata, key, vocabulary, name=name) for key in _END_KEYS]
    places = {token: id for id, token in enumerate(vocabulary.tokens)}
    spelled = [places[text] for text in _ENDS if text in places and vocabulary.kinds[places[text]] is not Kind.NORMAL]
    ends = [id for id in (*named, *spelled) if id is not None]
    return Specials(
        beginning=_id(metadata, "bos_token_id", vocabulary, name=name),
        ends=tuple(dict.fromkeys(ends)),
        unknown=_id(metadata, "unknown_token_id", vocabulary, name=name),
        padding=_id(metadata, "padding_token_id", vocabulary, name=name),
        add_beginning=model == GEMMA4 or metadata.flag(_PREFIX + "add_bos_token", usual=model == "llama" or added),
        add_end=metadata.flag(_PREFIX + "add_eos_token", usual=False),
    )


def used_size(vocabulary: Vocabulary) -> int:
    """Return the number of tokens without the padding at the end."""
    last = (id for id in reversed(range(len(vocabulary.kinds))) if vocabulary.kinds[id] is not Kind.UNUSED)
    return next(last, -1) + 1


def first_difference(one: Vocabulary, other: Vocabulary) -> str | None:
    """Return the first difference between two vocabularies, or None if they are equal; padding is ignored."""
    for id, (mine, theirs) in enumerate(zip_longest(_used(one), _used(other))):
        if mine != theirs:
            return f"id {id} is {_named(mine)} in one and {_named(theirs)} in the other"
    for place, (left, right) in enumerate(zip_longest(one.merges, other.merges)):
        if left != right:
            return f"the tokens are the same, but merge {place} is {left!r} in one and {right!r} in the other"
    if _splits(one) != _splits(other):
        return f"the tokens are the same, but one is {one.model} {one.pre} and the other {other.model} {other.pre}"
    return None


def _splits(vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the values that determine how text is split; llama.cpp uses the pre-tokenizer only in byte-level BPE."""
    return vocabulary.model, (vocabulary.pre or _DEFAULT_PRE) if vocabulary.model == "gpt2" else ""


def _used(vocabulary: Vocabulary) -> Sequence[str | None]:
    pairs = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return [None if kind is Kind.UNUSED else token for token, kind in pairs][: used_size(vocabulary)]


def _named(token: str | None) -> str:
    return "unused" if token is None else repr(token)


def _kinds(metadata: Metadata, count: int, *, name: str) -> tuple[Kind, ...]:
    found = _counted(metadata.numbers(_PREFIX + "token_type"), count, what="types", name=name)
    return tuple(_KINDS.get(int(kind), Kind.NORMAL) for kind in found) or (Kind.NORMAL,) * count


def _counted(values: tuple[float, ...], count: int, *, what: str, name: str) -> tuple[float, ...]:
    if values and len(values) != count:
        raise ExportError(f"{name} lists {len(values)} {what} for {count} tokens: convert it again")
    return values


def _id(metadata: Metadata, key: str, vocabulary: Vocabulary, *, name: str) -> int | None:
    id = metadata.integer(_PREFIX + key)
    if id is None or 0 <= id < len(vocabulary.tokens):
        return id
    if id in (-1, 0xFFFFFFFF):  # written by some converters for "none"
        return None
    raise ExportError(f"{name} has the {key} {id}, but {len(vocabulary.tokens)} tokens: convert it again")


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed access to the fields of a GGUF file that was read with its arrays."""

    contents: Contents

    def text(self, key: str) -> str:
        """Return a string; empty if it is missing."""
        value = self.contents.fields.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        value = self.contents.fields.get(key)
        return value if isinstance(value, int) and key not in self.contents.arrays else None

    def number(self, key: str) -> float | None:
        """Return a finite number, or None."""
        value = self.contents.fields.get(key)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else None

    def flag(self, key: str, *, usual: bool) -> bool:
        value = self.integer(key)
        return usual if value is None else bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings; empty if it is missing."""
        return tuple(value for value in self.contents.arrays.get(key, ()) if isinstance(value, str))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an array of numbers; empty if it is missing."""
        return tuple(value for value in self.contents.arrays.get(key, ()) if not isinstance(value, str))
