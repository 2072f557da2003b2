"""The tokenizer of an imported GGUF file: the tokenizer.json beside it, where it is the same, else one that is built.

One that is built gives a text the ids that llama.cpp gives it. Two kinds are: byte-level BPE (`gpt2`), and BPE with
scores and byte tokens as SentencePiece makes it (`llama`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from edgedecode.errors import ExportError, ManifestError
from edgedecode.text.tokenizer import Tokenizer

from ..frameworks import reason_of
from ..gguf.pretokenizers import KNOWN, splits_of
from ..gguf.specials import Specials
from ..gguf.vocabulary import Kind, Vocabulary
from ..pack_texts import TOKENIZER
from .gguf_source import GgufSource
from .gguf_vocabulary import used_size

__all__ = ["ImportedTokenizer", "build_tokenizer", "read_tokenizer"]

_SPACE = "\u2581"
_ADDED = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
_BESIDE = "put the model's tokenizer.json next to it"
_Json = Mapping[str, object]


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
            return ImportedTokenizer(text, f"the tokenizer is the {TOKENIZER} next to it")
        reason = f", since the {TOKENIZER} next to it is another one ({difference})"
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
    """Return where the file's ids differ; padding, and how runs of spaces are spelled, do not count."""
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


def build_tokenizer(vocabulary: Vocabulary, specials: Specials, *, strips: bool, name: str) -> tokenizers.Tokenizer:
    """Build the tokenizer of the file `name`. strips: special tokens take the spaces after them, as Phi-3's do.

    Raises ExportError for kinds of vocabularies, and names of splits, that are unknown here.
    """
    build = {"gpt2": _byte_level, "llama": _scored}.get(vocabulary.model)
    if build is None:
        raise ExportError(
            f"{name} has a vocabulary of the kind {vocabulary.model or 'none'!r}, known are gpt2 and llama: {_BESIDE}"
        )
    state = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, specials, strips=strips),
        "post_processor": _post_processor(vocabulary, specials),
        **build(vocabulary, specials, name),
    }
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # the library raises bare Exception
        raise ExportError(f"{name} has tokens and merges that do not fit ({reason_of(error)}): {_BESIDE}") from None


def _byte_level(vocabulary: Vocabulary, specials: Specials, name: str) -> _Json:
    splits = splits_of(vocabulary.pre)
    if splits is None:
        raise ExportError(
            f"{name} splits text by {vocabulary.pre or 'no name'!r} (tokenizer.ggml.pre), known are "
            f"{', '.join(KNOWN)}: {_BESIDE}"
        )
    return {
        "normalizer": {"type": splits.normal_form} if splits.normal_form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(splits.steps)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": _model(
            vocabulary, merges=[_halves(merge) for merge in vocabulary.merges], ignore_merges=splits.ignore_merges
        ),
    }


def _scored(vocabulary: Vocabulary, specials: Specials, name: str) -> _Json:
    if not vocabulary.scores:
        raise ExportError(f"{name} lists no scores of its tokens: {_BESIDE}")
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.space_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    unknown = vocabulary.kinds.index(Kind.UNKNOWN) if Kind.UNKNOWN in vocabulary.kinds else specials.unknown
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, marks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _model(
            vocabulary,
            merges=_merges_of_scores(vocabulary),
            unknown=None if unknown is None else vocabulary.tokens[unknown],
            fallback=True,
        ),
    }


def _model(
    vocabulary: Vocabulary,
    *,
    merges: Sequence[Sequence[str]],
    ignore_merges: bool = False,
    unknown: str | None = None,
    fallback: bool = False,
) -> _Json:
    """Return the BPE model; added tokens are among its tokens, so that they keep their ids."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fallback,
        "byte_fallback": fallback,
        "ignore_merges": ignore_merges,
        "vocab": {token: id for id, token in enumerate(vocabulary.tokens[: used_size(vocabulary)])},
        "merges": merges,
    }


def _halves(merge: str) -> tuple[str, str]:
    place = merge.find(" ", 1)
    return merge[:place], merge[place + 1 :]


def _merges_of_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Order all ways to make a token of two by its score: neighbours whose token scores best are merged first.

    Of one token's ways those with the lower ids come first, as in transformers' SentencePieceExtractor.
    """
    plain = [id for id, kind in enumerate(vocabulary.kinds) if kind is Kind.NORMAL]
    ids = {vocabulary.tokens[id]: id for id in plain}
    ways = [
        (-vocabulary.scores[id], ids[token[:place]], ids[token[place:]])
        for token, id in ids.items()
        for place in range(1, len(token))
        if token[:place] in ids and token[place:] in ids
    ]
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, left, right in sorted(ways)]


def _added_tokens(vocabulary: Vocabulary, specials: Specials, *, strips: bool) -> list[_Json]:
    """List what stands for itself in a text; such a token that ends an answer is special whatever its type."""
    return [
        {
            "id": id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": strips and token not in _UNSTRIPPED,
            "normalized": False,
            "special": kind is not Kind.USER_DEFINED or id in specials.ends,
        }
        for id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in _ADDED
    ]


def _post_processor(vocabulary: Vocabulary, specials: Specials) -> _Json | None:
    """Put the beginning and the end around a text where the file says so."""
    front = specials.beginning if specials.add_beginning else None
    back = specials.ends[0] if specials.add_end and specials.ends else None
    if front is None and back is None:
        return None
    around = {vocabulary.tokens[id]: id for id in (front, back) if id is not None}

    def whole(letter: str, type: int) -> list[_Json]:
        before, after = (
            [] if id is None else [{"SpecialToken": {"id": vocabulary.tokens[id], "type_id": type}}]
            for id in (front, back)
        )
        return [*before, {"Sequence": {"id": letter, "type_id": type}}, *after]

    return {
        "type": "TemplateProcessing",
        "single": whole("A", 0),
        "pair": [*whole("A", 0), *whole("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]} for text, id in around.items()},
    }
