"""Refuse a `tokenizer.json` whose normalizer or decoder lengthens texts too much."""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping

from edgedecode.duplicate_names import unique_keys
from edgedecode.errors import ManifestError

MOST_GROWTH = 64
"""Output bytes per input byte. NFKC yields up to 11, SentencePiece's maps 33, a space mark 3."""
LONGEST_TOKEN = 1 << 14
"""Characters."""
_FIXED = {
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "Lowercase": 2.0,
    "ByteLevel": 2.0,
    "BertNormalizer": 11.0,
    **dict.fromkeys(("Nmt", "Strip", "StripAccents"), 1.0),
    **dict.fromkeys(("BPEDecoder", "ByteFallback", "CTC", "Fuse", "Metaspace", "WordPiece"), 1.0),
}
"""Growth of the normalizer and decoder steps without parameters that change it, by the library's names."""
_LONGEST_NORMALIZER = 1 << 20
_NORMALIZER = re.compile(rb'"normalizer"\s*:\s*')
_SPELLED_OUT = re.compile(rb"\\u00(?:4[1-9a-fA-F]|5[0-9aA]|6[1-9a-fA-F]|7[0-9aA])")
"""A letter written as an escape, if its backslash is not itself escaped. The fixed prefix makes the search fast."""


def growth(steps: Iterable[Mapping[str, object]]) -> float:
    """Return the largest factor by which the steps of a normalizer or decoder can lengthen a text."""
    factor = 1.0
    for step in steps:
        factor *= _step_growth(step)
    return factor


def check_file(data: bytes) -> None:
    """Raise ManifestError for a tokenizer.json whose normalizer lengthens texts too much.

    Called before the library reads the file, since reading already normalizes its added tokens.
    """
    if any(_escapes(data, found.start()) for found in _SPELLED_OUT.finditer(data)):
        raise ManifestError("the tokenizer spells letters as escapes, which no known program does")
    for found in _NORMALIZER.finditer(data):
        text = data[found.end() : found.end() + _LONGEST_NORMALIZER].decode("utf-8", "ignore")
        try:
            value, _ = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(
                f"the tokenizer's normalizer is not JSON, or has more than {_LONGEST_NORMALIZER} bytes"
            ) from error
        if value is not None and type(value) is not int:  # a number is the id of a token named "normalizer"
            check_growth(_flat(value))


def _escapes(data: bytes, place: int) -> bool:
    """Return whether the backslash at `place` is the last of an odd number of them."""
    first = place
    while first and data[first - 1 : first] == b"\\":
        first -= 1
    return (place - first) % 2 == 0


def check_growth(steps: Iterable[Mapping[str, object]]) -> float:
    """Return the steps' `growth`. Raises ManifestError if it exceeds MOST_GROWTH."""
    found = growth(steps)
    if found > MOST_GROWTH:
        raise ManifestError(f"the tokenizer makes texts more than {MOST_GROWTH} times longer: no known model does")
    return found


def _flat(step: object) -> list[Mapping[str, object]]:
    """Return the steps of a normalizer as stored in the file. Raises ManifestError for an invalid one.

    A step must name its type: the library would guess it from the other fields, and we might guess differently.
    """
    if not isinstance(step, Mapping):
        raise ManifestError(f"the tokenizer's normalizer has a {type(step).__name__} where a step belongs")
    if step.get("type") != "Sequence":
        return [step]
    inner = step.get("normalizers")
    if not isinstance(inner, list):
        raise ManifestError("the tokenizer's normalizer is a Sequence without a list of normalizers")
    return [flat for one in inner for flat in _flat(one)]


def _step_growth(step: Mapping[str, object]) -> float:
    match step.get("type"):
        case "Replace":
            return _replace_growth(step)
        case "Prepend":  # added to each text between added tokens; the worst case is 1-byte texts and 1-byte tokens
            return 1 + len(str(step.get("prepend")).encode()) / 2
        case "Precompiled":
            return max(1.0, *map(len, _replacements(str(step.get("precompiled_charsmap") or ""))))
        case str(kind) if kind in _FIXED:
            return _FIXED[kind]
        case kind:
            raise ManifestError(f"the tokenizer has a step of the unknown type {str(kind)[:40]!r}")


def _replace_growth(step: Mapping[str, object]) -> float:
    pattern, content = step.get("pattern"), str(step.get("content")).encode()
    target = str(pattern["String"]).encode() if isinstance(pattern, Mapping) and "String" in pattern else b"?"
    if not target:
        raise ManifestError("the tokenizer replaces the empty string, which would match everywhere")
    return max(1.0, len(content) / len(target))


def _replacements(charsmap: str) -> list[bytes]:
    """Return the replacement texts of a SentencePiece map: they follow a trie, each ended by a zero byte."""
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    size = int.from_bytes(data[:4], "little")
    if size < 4 or size % 4 or len(data) < 4 + size:
        raise ManifestError("the tokenizer's precompiled_charsmap is damaged: export the pack again")
    return data[4 + size :].split(b"\0")
