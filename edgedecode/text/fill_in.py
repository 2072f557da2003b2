"""Prompts for code models that fill in what is missing between two texts, of the tokens that they were trained with."""

from collections.abc import Callable, Sequence

from edgedecode.errors import InputError

from .tokenizer import Tokenizer

_TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 and 3 Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
"""What precedes the text before the gap, the text after it, and what is filled in. It is their order in the prompt."""
_FILE_TOKENS = ("<|file_sep|>", "<file_sep>")
"""What precedes a file of the same project, the file's name being its first line."""


def can_fill_in(tokenizer: Tokenizer) -> bool:
    """Return whether a model can fill in."""
    return _first(tokenizer, _TOKENS) is not None


def fill_in_prompt(
    tokenizer: Tokenizer,
    before: str,
    after: str,
    *,
    begun: str = "",
    files: Sequence[tuple[str, str]] = (),
    encode: Callable[[str], list[int]] | None = None,
) -> tuple[int, ...]:
    """Return the prompt for a text between two others. Control tokens that the texts spell stay texts.

    begun: what has been filled in already. files: names and texts of other files, for models that know of such; others
    do without. encode: encodes a text; default: the tokenizer. Raises InputError for a model that cannot fill in.
    """
    encode = encode or tokenizer.encode
    tokens = _first(tokenizer, _TOKENS)
    if tokens is None:
        raise InputError("this model's tokenizer has no tokens to fill in with")
    ids = tokenizer.encode("", add_special=True)
    if separator := _first(tokenizer, [(each,) for each in _FILE_TOKENS]):
        for name, text in files:
            ids += [*separator, *encode(tokenizer.without_controls(f"{name}\n{text}"))]
    for token, text in zip(tokens, (before, after, begun), strict=True):
        ids += [token, *encode(tokenizer.without_controls(text))]
    return tuple(ids)


def _first(tokenizer: Tokenizer, candidates: Sequence[Sequence[str]]) -> list[int] | None:
    """Return the ids of the first candidates that are all in the vocabulary."""
    for each in candidates:
        ids = [id for token in each if (id := tokenizer.token_to_id(token)) is not None]
        if len(ids) == len(each):
            return ids
    return None
