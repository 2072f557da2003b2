"""The tokenizer of an imported GGUF file: the tokenizer.json beside it, where it is the same, else the one inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from edgedecode.errors import ExportError, ManifestError
from edgedecode.text.tokenizer import Tokenizer

from ...frameworks import reason_of
from ...gguf.vocabulary import Kind, Vocabulary
from ...pack_texts import TOKENIZER
from .source import GgufSource
from .tokenizer import build_tokenizer
from .vocabulary import used_size

__all__ = ["ImportedTokenizer", "read_tokenizer"]

_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class ImportedTokenizer:
    """A tokenizer.json's text, and a sentence on where it comes from."""

    text: str
    note: str

    def opened(self) -> Tokenizer:
        return Tokenizer(self.inner())

    def inner(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.text)


def read_tokenizer(source: GgufSource, *, folder: Path) -> ImportedTokenizer:
    """Take the tokenizer.json in `folder` if its ids mean the same, else build one. Raises ExportError if none can be.

    folder: where the file was found, which its resolved path may not be.
    """
    beside = folder / TOKENIZER
    reason = ""
    if beside.is_file():
        text = _read(beside)
        difference = _difference(text, source.vocabulary)
        if difference is None:
            return ImportedTokenizer(text, f"the tokenizer is {TOKENIZER} beside it")
        reason = f", since {TOKENIZER} beside it is another one ({difference})"
    built = build_tokenizer(source.vocabulary, source.specials, strips=source.strips, name=source.name)
    return ImportedTokenizer(
        built.to_str(), f"the tokenizer was built from the vocabulary inside {source.name}{reason}"
    )


def _read(path: Path) -> str:
    try:
        Tokenizer.from_file(path)
        return path.read_text(encoding="utf-8")
    except (ManifestError, OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be used ({reason_of(error)}): replace or remove it") from None


def _difference(text: str, vocabulary: Vocabulary) -> str | None:
    """Say where the file's ids mean something else; padding, and how runs of spaces are spelled, are no difference."""
    tokenizer, size = Tokenizer(tokenizers.Tokenizer.from_str(text)), used_size(vocabulary)
    for id in range(max(tokenizer.size, size)):
        mine = tokenizer.token_text(id)
        theirs = vocabulary.tokens[id] if id < size else None
        if theirs is not None and vocabulary.kinds[id] is Kind.UNUSED:
            continue
        if _spelled(mine) != _spelled(theirs):
            return f"id {id} is {mine!r} there and {theirs!r} in the file"
    if vocabulary.merges and (merges := _merges(text)) != vocabulary.merges:
        return f"its {len(merges)} merges are not the file's {len(vocabulary.merges)}"
    return None


def _spelled(token: str | None) -> str | None:
    return None if token is None else token.replace(_SPACE, " ")


def _merges(text: str) -> tuple[str, ...]:
    found = json.loads(text)["model"].get("merges") or []
    return tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in found)
