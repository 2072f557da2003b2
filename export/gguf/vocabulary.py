"""Converts a tokenizer.json to llama.cpp's vocabulary: tokens, their types, and merges or scores.

Two kinds are supported: byte-level BPE (GPT-2, Llama 3, Qwen), and SentencePiece's BPE with byte tokens (Llama 2,
Phi-3, Gemma, Mistral), for which llama.cpp needs a score for each token instead of merges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError
from edgedecode.text.token_text import component_steps

from .pretokenizers import pre_type

if TYPE_CHECKING:
    import tokenizers

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
_ADDED_SCORE = -1000.0
_WITHOUT = "export without gguf among the --formats"
_Steps = Sequence[Mapping[str, object]]


class Kind(IntEnum):
    """llama.cpp's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary with one token per row of the model. merges: for byte-level BPE; scores: for the model `llama`."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    space_prefix: bool = False
    notes: tuple[str, ...] = field(default=())
    """Differences in llama.cpp's tokenization."""
    normal_form: str = ""
    """The Unicode normalization that must be applied to texts first, because llama.cpp does not."""
    spares_spaces: bool = False
    """Whether the tokenizer adds no space before a text that begins with one."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The BPE model of a tokenizer.json: its merges in order, and two flags."""

    merges: tuple[tuple[str, str], ...]
    fallback: bool
    ignore_merges: bool


def read_vocabulary(inner: tokenizers.Tokenizer, *, rows: int, name: str) -> Vocabulary:
    """Convert a tokenizer to a vocabulary of `rows` tokens. Raises ExportError if llama.cpp does not support it."""
    model = _read_model(inner, name=name)
    normalizer, splits = component_steps(inner.normalizer), component_steps(inner.pre_tokenizer)
    if model.fallback:
        return _with_scores(inner, model, steps=[*normalizer, *splits], rows=rows, name=name)
    return _with_merges(inner, model, normalizer=normalizer, splits=splits, rows=rows, name=name)


def _with_merges(
    inner: tokenizers.Tokenizer, model: _Model, *, normalizer: _Steps, splits: _Steps, rows: int, name: str
) -> Vocabulary:
    form = _normal_form(normalizer, name=name)
    tokens, kinds = _tokens(inner, rows=rows)
    note = (
        f"llama.cpp does not normalize texts to {form}, as {name}'s tokenizer does: decomposed characters get "
        f"different tokens there"
    )
    return Vocabulary(
        model="gpt2",
        pre=pre_type(splits, ignore_merges=model.ignore_merges, name=name),
        tokens=tokens,
        kinds=kinds,
        merges=tuple(" ".join(pair) for pair in model.merges),
        notes=(note,) if form else (),
        normal_form=form,
    )


def _with_scores(inner: tokenizers.Tokenizer, model: _Model, *, steps: _Steps, rows: int, name: str) -> Vocabulary:
    """Score each token by the rank of the first merge that makes it: llama.cpp merges the best scores first."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(model.merges):
        ranks.setdefault(left + right, rank)
    tokens, kinds = _tokens(inner, rows=rows, merged=ranks)
    last = len(model.merges)  # the rank of tokens that no merge makes
    scores = tuple(
        _ADDED_SCORE if kind in (Kind.CONTROL, Kind.USER_DEFINED) else -float(ranks.get(token, last))
        for token, kind in zip(tokens, kinds, strict=True)
    )
    prefix = _space_prefix(steps, name=name)
    sparing = prefix and any(step["type"] == "Metaspace" for step in steps)
    note = (
        f"llama.cpp adds a space before every text, but {name}'s tokenizer not before a text that begins with one: "
        f"these texts, and texts after a special token, have one more space there"
    )
    notes = (note,) if sparing else ()
    return Vocabulary(
        "llama", "default", tokens, kinds, scores=scores, space_prefix=prefix, notes=notes, spares_spaces=sparing
    )


def _tokens(
    inner: tokenizers.Tokenizer, *, rows: int, merged: Mapping[str, int] | None = None
) -> tuple[tuple[str, ...], tuple[Kind, ...]]:
    """Return each id's text and kind. merged: tokens made by merges, for vocabularies with byte tokens; else None."""
    spelled = {id: token for token, id in inner.get_vocab(with_added_tokens=True).items()}
    added = inner.get_added_tokens_decoder()
    tokens, kinds = [], []
    for id in range(rows):
        token, kind = spelled.get(id), Kind.NORMAL
        if token is None:
            token, kind = f"[PAD{id}]", Kind.UNUSED
        elif id in added:
            kind, token = _added(added[id], merged or {})
        elif merged is not None and _BYTE.fullmatch(token):
            kind = Kind.BYTE
        tokens.append(token)
        kinds.append(kind)
    return tuple(tokens), tuple(kinds)


def _added(token: tokenizers.AddedToken, merged: Mapping[str, int]) -> tuple[Kind, str]:
    """Return an added token's kind, and its text with plain spaces.

    Gemma lists runs of space marks as added tokens that match only the marks; from plain spaces, merges make them.
    """
    if token.special:
        return Kind.CONTROL, token.content
    if token.normalized:
        return Kind.USER_DEFINED, token.content.replace(_SPACE, " ")
    return (Kind.NORMAL if _SPACE in token.content and token.content in merged else Kind.USER_DEFINED), token.content


def _read_model(inner: tokenizers.Tokenizer, *, name: str) -> _Model:
    state = json.loads(inner.model.__getstate__())
    if state.get("type") != "BPE":
        raise ExportError(f"{name} has a tokenizer of type {state.get('type')}, only BPE is supported: {_WITHOUT}")
    if state.get("continuing_subword_prefix") or state.get("end_of_word_suffix"):
        raise ExportError(f"{name}'s tokenizer marks parts of words, which llama.cpp's does not: {_WITHOUT}")
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in state["merges"]]
    return _Model(
        merges=tuple((left, right) for left, right in merges),
        fallback=bool(state.get("byte_fallback")),
        ignore_merges=bool(state.get("ignore_merges")),
    )


def _normal_form(normalizer: _Steps, *, name: str) -> str:
    """Return a byte-level tokenizer's Unicode normalization, or an empty string. Raises ExportError for others."""
    types = [str(step["type"]) for step in normalizer]
    if types in ([], ["NFC"]):
        return "".join(types)
    raise ExportError(f"{name}'s tokenizer changes texts by {', '.join(types)}, which llama.cpp does not: {_WITHOUT}")


def _space_prefix(steps: _Steps, *, name: str) -> bool:
    """Return whether a space is added before a text. Raises ExportError for steps other than SentencePiece's."""
    prefix = False
    for step in steps:
        match step:
            case {"type": "Prepend", "prepend": "\u2581"}:
                prefix = True
            case {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first" | "always"}:
                prefix = True
            case {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"}:
                pass
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case {"type": "Split", "pattern": {"String": " "}}:  # Gemma's has no effect: no spaces are left
                pass
            case _:
                raise ExportError(f"{name}'s tokenizer has the step {step['type']}, which llama.cpp lacks: {_WITHOUT}")
    return prefix
