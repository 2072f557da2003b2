"""The special tokens of a model by what llama.cpp calls them, and the keys of its tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Generation

from ..json_fields import Fields
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers
    from gguf import GGUFWriter

__all__ = ["Specials", "file_name", "read_specials", "write_vocabulary"]

_END_KEYS = 3
"""llama.cpp names an end of text, of a turn and of a message, and stops at each of them."""
_PHI3 = re.compile(r"phi-?3", re.IGNORECASE)
_STRIPPING = ("<unk>", "<s>", "</s>", "<|endoftext|>")
"""What llama.cpp expects of a vocabulary whose file is named after Phi-3; without them it cannot read the file."""


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids, None where there is no such token. `ends`: whatever ends an answer, the usual one first."""

    beginning: int | None
    ends: tuple[int, ...]
    unknown: int | None
    padding: int | None
    add_beginning: bool
    add_end: bool

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.ends:
            return ("the GGUF file names no token that ends an answer, since the model's configuration names none",)
        if len(self.ends) <= _END_KEYS:
            return ()
        left = ", ".join(str(id) for id in self.ends[_END_KEYS:])
        return (f"the GGUF file names {_END_KEYS} tokens that end an answer, this model has more: {left} are left out",)


def read_specials(inner: tokenizers.Tokenizer, generation: Generation, *, config: Fields, name: str) -> Specials:
    """Find a tokenizer's special ids. Raises ExportError where it puts more than one token around a text."""
    bare = inner.encode("a", add_special_tokens=False).ids
    whole = inner.encode("a", add_special_tokens=True).ids
    place = next(start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
    front, back = whole[:place], whole[place + len(bare) :]
    if len(front) > 1 or len(back) > 1:
        raise ExportError(
            f"{name}'s tokenizer puts {len(front)} tokens before a text and {len(back)} behind it, llama.cpp's at most "
            f"one each: export without gguf among the --formats"
        )
    beginning = front[0] if front else _id_of(inner, generation.bos_token)
    usual = back[0] if back else _id_of(inner, generation.eos_token)
    ends = [*([usual] if usual is not None else []), *generation.end_token_ids]
    return Specials(
        beginning=beginning if beginning is not None else _configured(config, "bos_token_id"),
        ends=tuple(dict.fromkeys(ends)),
        unknown=_id_of(inner, getattr(inner.model, "unk_token", None) or ""),
        padding=_configured(config, "pad_token_id"),
        add_beginning=bool(front),
        add_end=bool(back),
    )


def write_vocabulary(
    writer: GGUFWriter, vocabulary: Vocabulary, specials: Specials, *, chat_template: str | None
) -> None:
    """Add every key of the tokenizer."""
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


def _configured(config: Fields, key: str) -> int | None:
    value = config.values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def file_name(name: str, inner: tokenizers.Tokenizer) -> str:
    """Return `name`, with Phi-3's in it for tokenizers like Phi-3's and without it for all others."""
    added = inner.get_added_tokens_decoder().values()
    stripping = any(token.rstrip for token in added) and all(
        inner.token_to_id(token) is not None for token in _STRIPPING
    )
    if stripping:
        return name if _PHI3.search(name) else f"{name} (Phi-3)"
    return _PHI3.sub("Phi 3", name)
