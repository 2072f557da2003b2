"""Finds the tokenizer of an imported GGUF file: the tokenizer.json next to it if the ids match, else a rebuilt one.

A rebuilt tokenizer gives the same ids as llama.cpp. Two kinds are supported: byte-level BPE (`gpt2`), and scored BPE
with byte fallback as in SentencePiece (`llama`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from edgedecode.errors import ExportError, ManifestError
from edgedecode.gguf.tokenizer_kinds import BYTE_LEVEL, REMEDY, SCORED, tokenizer_fault
from edgedecode.text.tokenizer import Tokenizer

from ..frameworks import reason_of
from ..gguf.pretokenizers import splits_of
from ..gguf.specials import Specials
from ..gguf.vocabulary import Kind, Vocabulary
from ..pack_texts import TOKENIZER
from .gguf_source import GgufSource
from .gguf_vocabulary import used_size

_SPACE = "\u2581"
_ADDED = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
_Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ImportedTokenizer:
    """A tokenizer.json's text, and a note on its origin."""

    text: str
    note: str

    def opened(self) -> Tokenizer:
        return Tokenizer(self.inner())

    def inner(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.text)


def read_tokenizer(source: GgufSource, *, folder: Path) -> ImportedTokenizer:
    """Take the tokenizer.json in `folder` if its ids match, else build one. Raises ExportError if that is impossible.

    folder: the folder of the given path, which a link may lead out of.
    """
    neighbour = folder / TOKENIZER
    reason = ""
    if neighbour.is_file():
        text = _read(neighbour)
        difference = _difference(text, source.vocabulary)
        if difference is None:
            return ImportedTokenizer(text, f"the tokenizer is the {TOKENIZER} next to it")
        reason = f", because the {TOKENIZER} next to it differs ({difference})"
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
    """Return the first difference from the file's ids, or None; padding and the spelling of spaces are ignored."""
    tokenizer, size = Tokenizer(tokenizers.Tokenizer.from_str(text)), used_size(vocabulary)
    for id in range(max(tokenizer.size, size)):
        mine = tokenizer.token_text(id)
        theirs = vocabulary.tokens[id] if id < size else None
        if theirs is not None and vocabulary.kinds[id] is Kind.UNUSED:
            continue
        if _spelled(mine) != _spelled(theirs):
            return f"id {id} is {mine!r} there and {theirs!r} in the file"
    if vocabulary.merges and (merges := _merges(text)) != vocabulary.merges:
        return f"its {len(merges)} merges differ from the file's {len(vocabulary.merges)}"
    return None


def _spelled(token: str | None) -> str | None:
    return None if token is None else token.replace(_SPACE, " ")


def _merges(text: str) -> tuple[str, ...]:
    found = json.loads(text)["model"].get("merges") or []
    return tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in found)


def build_tokenizer(vocabulary: Vocabulary, specials: Specials, *, strips: bool, name: str) -> tokenizers.Tokenizer:
    """Build the tokenizer of the file `name`. strips: special tokens absorb following spaces, as Phi-3's do.

    Raises ExportError for unknown kinds of vocabularies and unknown pre-tokenizers.
    """
    if fault := tokenizer_fault(vocabulary.model, vocabulary.pre):
        raise ExportError(f"{name} {fault}")
    build = _byte_level if vocabulary.model == BYTE_LEVEL else _scored
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
        raise ExportError(f"{name} has inconsistent tokens and merges ({reason_of(error)}): {REMEDY}") from None


def _byte_level(vocabulary: Vocabulary, specials: Specials, name: str) -> _Json:
    splits = splits_of(vocabulary.pre)
    assert splits is not None, "unknown ones were refused"
    return {
        "normalizer": {"type": splits.normal_form} if splits.normal_form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(splits.steps)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": _model(
            vocabulary, merges=[_halves(merge) for merge in vocabulary.merges], ignore_merges=splits.ignore_merges
        ),
    }


def _scored(vocabulary: Vocabulary, specials: Specials, name: str) -> _Json:
    if not vocabulary.scores and (vocabulary.model == SCORED or not vocabulary.merges):
        raise ExportError(f"{name} has no token scores: {REMEDY}")
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
            merges=[_halves(merge) for merge in vocabulary.merges] or _merges_of_scores(vocabulary),
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
    """Return the BPE model. It includes the added tokens, so that they keep their ids."""
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
    """Return every merge of two tokens into one, by descending score of the result: the best are merged first.

    Merges with the same result are ordered by ascending ids, as in transformers' SentencePieceExtractor.
    """
    plain = [id for id, kind in enumerate(vocabulary.kinds) if kind is Kind.NORMAL]
    ids = {vocabulary.tokens[id]: id for id in plain}
    merges = [
        (-vocabulary.scores[id], ids[token[:place]], ids[token[place:]])
        for token, id in ids.items()
        for place in range(1, len(token))
        if token[:place] in ids and token[place:] in ids
    ]
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, left, right in sorted(merges)]


def _added_tokens(vocabulary: Vocabulary, specials: Specials, *, strips: bool) -> list[_Json]:
    """List the tokens that are matched literally in a text; user-defined end tokens are marked special too."""
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
    """Return a step that adds the BOS and end tokens to a text, or None if the file wants neither."""
    front = specials.beginning if specials.add_beginning else None
    back = specials.ends[0] if specials.add_end and specials.ends else None
    if front is None and back is None:
        return None
    around = {vocabulary.tokens[id]: id for id in (front, back) if id is not None}

    def wrapped(letter: str, type: int) -> list[_Json]:
        before, after = (
            [] if id is None else [{"SpecialToken": {"id": vocabulary.tokens[id], "type_id": type}}]
            for id in (front, back)
        )
        return [*before, {"Sequence": {"id": letter, "type_id": type}}, *after]

    return {
        "type": "TemplateProcessing",
        "single": wrapped("A", 0),
        "pair": [*wrapped("A", 0), *wrapped("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]} for text, id in around.items()},
    }
