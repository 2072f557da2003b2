"""Maps the pre-tokenizers of byte-level tokenizers to llama.cpp's names for them, and back.

llama.cpp has a fixed set of pre-tokenizers, so a tokenizer.json must match one of them. Only the parts that affect
splitting are compared. Source: src/llama-vocab.cpp and conversion/base.py of llama.cpp.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode.errors import ExportError
from edgedecode.gguf.tokenizer_kinds import PRETOKENIZERS

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = _ENGLISH + "|" + _WORD + r"\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _ENGLISH + "|" + _WORD + r"\p{L}+|\p{N}" + _TAIL
_QWEN35 = (_ENGLISH + "|" + _WORD + r"[\p{L}\p{M}]+|\p{N}" + _TAIL).replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_TEKKEN = f"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*" + r"|\p{N}" + _PATH_TAIL
_GPT4O = f"{_WORD}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_WORD}{_UPPER}+{_LOWER}*{_ENGLISH}?" + r"|\p{N}{1,3}" + _PATH_TAIL

_BYTES = {"type": "ByteLevel", "use_regex": False}
_GPT2 = {"type": "ByteLevel", "use_regex": True}
_DEFAULTS: Mapping[str, Mapping[str, object]] = {"ByteLevel": {"add_prefix_space": False, "trim_offsets": True}}
"""Required keys in tokenizer.json that do not affect splitting."""
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> list[Mapping[str, object]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, _BYTES]


_TYPES: Sequence[tuple[str, bool, Sequence[Mapping[str, object]]]] = (
    ("llama-bpe", True, _split(_LLAMA3)),
    ("dbrx", False, _split(_LLAMA3)),
    ("qwen2", False, _split(_QWEN2)),
    ("qwen35", False, _split(_QWEN35)),
    ("tekken", True, _split(_TEKKEN)),
    ("gpt-4o", False, _split(_GPT4O)),
    ("smollm", False, [_DIGITS, _GPT2]),
    ("gpt-2", False, [_GPT2]),
)
"""Name, `ignore_merges` (a word that is a token is never split), and the steps."""

KNOWN: tuple[str, ...] = tuple(name for name, _, _ in _TYPES)
_NORMAL_FORMS = dict.fromkeys(("qwen2", "qwen35"), "NFC")
"""Unicode normalization of tokenizers with exactly this name; GGUF files do not store it."""


@dataclass(frozen=True, slots=True)
class Splits:
    """A pre-tokenizer: its steps as in tokenizer.json, and related settings."""

    name: str
    """The canonical one of its names."""
    ignore_merges: bool
    steps: tuple[Mapping[str, object], ...]
    normal_form: str


def splits_of(name: str) -> Splits | None:
    """Return the pre-tokenizer of llama.cpp's name, or None if it is unknown."""
    first = next((first for first, others in PRETOKENIZERS.items() if name in others), name)
    for found, ignoring, steps in _TYPES:
        if found == first:
            complete = tuple({**_DEFAULTS.get(str(step["type"]), {}), **step} for step in steps)
            return Splits(first, ignoring, complete, _NORMAL_FORMS.get(name, ""))
    return None


def pre_type(steps: Sequence[Mapping[str, object]], *, ignore_merges: bool, name: str) -> str:
    """Return llama.cpp's name of these pre-tokenizer steps. Raises ExportError if it has none."""
    plain = [_without_defaults(step) for step in steps]
    for found, ignoring, wanted in _TYPES:
        if plain == list(wanted) and ignoring == ignore_merges:
            return found
    raise ExportError(
        f"{name} has a pre-tokenizer that llama.cpp lacks ({json.dumps(plain)[:160]}"
        f"{', ignore_merges' if ignore_merges else ''}); supported are {', '.join(KNOWN)}: "
        f"export without gguf among the --formats"
    )


def _without_defaults(step: Mapping[str, object]) -> Mapping[str, object]:
    """Remove keys that do not affect splitting."""
    ignored = ("trim_offsets",) + (("add_prefix_space",) if not step.get("add_prefix_space") else ())
    return {key: value for key, value in step.items() if key not in ignored}
