"""The name a file gives itself, by which llama.cpp decides one thing: whether special tokens take spaces after them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

__all__ = ["file_name"]

_PHI3 = re.compile(r"phi-?3", re.IGNORECASE)
_STRIPPING = ("<unk>", "<s>", "</s>", "<|endoftext|>")
"""What llama.cpp expects of a vocabulary whose file is named after Phi-3; without them it cannot read the file."""


def file_name(name: str, inner: tokenizers.Tokenizer) -> str:
    """Return `name`, with Phi-3's in it for tokenizers like Phi-3's and without it for all others."""
    added = inner.get_added_tokens_decoder().values()
    stripping = any(token.rstrip for token in added) and all(
        inner.token_to_id(token) is not None for token in _STRIPPING
    )
    if stripping:
        return name if _PHI3.search(name) else f"{name} (Phi-3)"
    return _PHI3.sub("Phi 3", name)
