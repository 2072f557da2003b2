"""A model's special tokens in llama.cpp's terms, and the tokenizer's keys in a GGUF file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Generation

from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers
    from gguf import GGUFWriter

_END_KEYS = 3
"""llama.cpp has keys for the end of a text, a turn and a message, and stops at each of them."""
PHI3 = re.compile(r"phi-?3", re.IGNORECASE)
"""Model names for which llama.cpp lets special tokens absorb following spaces."""
_STRIPPING = ("<unk>", "<s>", "</s>", "<|endoftext|>")
"""Tokens that llama.cpp requires in a file whose model name contains Phi-3; without them it cannot read the file."""


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids of special tokens, or None. ends: the tokens that end an answer, the default one first."""

    beginning: int | None
    ends: tuple[int, ...]
    unknown: int | None
    padding: int | None
    add_beginning: bool
    add_end: bool

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.ends:
            return ("the GGUF file has no token that ends an answer, because the model's configuration has none",)
        if len(self.ends) <= _END_KEYS:
            return ()
        left = ", ".join(str(id) for id in self.ends[_END_KEYS:])
        return (
            f"a GGUF file can have {_END_KEYS} tokens that end an answer, this model has more: {left} are left out",
        )


def read_specials(
    inner: tokenizers.Tokenizer, generation: Generation, *, name: str, beginning: object = None, padding: object = None
) -> Specials:
    """Find a tokenizer's special ids. beginning, padding: what the model's configuration names.

    Raises ExportError if the tokenizer adds several tokens before or after a text.
    """
    bare = inner.encode("a", add_special_tokens=False).ids
    full = inner.encode("a", add_special_tokens=True).ids
    place = next(start for start in range(len(full)) if full[start : start + len(bare)] == bare)
    front, back = full[:place], full[place + len(bare) :]
    if len(front) > 1 or len(back) > 1:
        raise ExportError(
            f"{name}'s tokenizer adds {len(front)} tokens before a text and {len(back)} after it, llama.cpp at most "
            f"one each: export without gguf among the --formats"
        )
    first = front[0] if front else _id_of(inner, generation.bos_token)
    default = back[0] if back else _id_of(inner, generation.eos_token)
    ends = [*([default] if default is not None else []), *generation.end_token_ids]
    return Specials(
        beginning=first if first is not None else _configured(beginning),
        ends=tuple(dict.fromkeys(ends)),
        unknown=_id_of(inner, getattr(inner.model, "unk_token", None) or ""),
        padding=_configured(padding),
        add_beginning=bool(front),
        add_end=bool(back),
    )


def write_vocabulary(
    writer: GGUFWriter, vocabulary: Vocabulary, specials: Specials, *, chat_template: str | None
) -> None:
    """Add all keys of the tokenizer."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([int(kind) for kind in vocabulary.kinds])
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.space_prefix)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    ends = (*specials.ends, None, None, None)
    for add, id in (
        (writer.add_bos_token_id, specials.beginning),
        (writer.add_eos_token_id, ends[0]),
        (writer.add_eot_token_id, ends[1]),
        (writer.add_eom_token_id, ends[2]),
        (writer.add_unk_token_id, specials.unknown),
        (writer.add_pad_token_id, specials.padding),
    ):
        if id is not None:
            add(id)
    writer.add_add_bos_token(specials.add_beginning)
    writer.add_add_eos_token(specials.add_end)
    if chat_template:
        writer.add_chat_template(chat_template)


def _id_of(inner: tokenizers.Tokenizer, token: str) -> int | None:
    return inner.token_to_id(token) if token else None


def _configured(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def file_name(name: str, inner: tokenizers.Tokenizer) -> str:
    """Return `name`, changed so that it contains Phi-3 exactly if the tokenizer behaves like Phi-3's.

    llama.cpp decides by the model's name whether special tokens absorb following spaces.
    """
    added = inner.get_added_tokens_decoder().values()
    stripping = any(token.rstrip for token in added) and all(
        inner.token_to_id(token) is not None for token in _STRIPPING
    )
    if stripping:
        return name if PHI3.search(name) else f"{name} (Phi-3)"
    return PHI3.sub("Phi 3", name)
