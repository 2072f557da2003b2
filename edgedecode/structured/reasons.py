"""Why a grammar is refused, in words for the one who wrote it."""

import re

from edgedecode.errors import InputError

from .grammar import Grammar

_EXCERPT = re.compile(r"\n +\d+ \| ")
UNSUPPORTED = "the json_schema is not supported: "


def refused(grammar: Grammar, text: str) -> InputError:
    """Return the refusal of a grammar, with the reason from a text of llguidance."""
    return InputError(f"the {grammar.kind} is not supported: {reason(text)}")


def is_failure(error: BaseException) -> bool:
    """Return whether llguidance raised an error: its panics have another base."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason(text: str) -> str:
    """Return llguidance's reason without its advice, which loosens the schema, and without the grammar's own text."""
    text = _EXCERPT.split(text, 1)[0].split("\n<backtrace>", 1)[0]
    if text.startswith("oneOf constraints are not supported"):
        return "the options of a oneOf do not provably exclude each other: use anyOf"
    if "unknown special token" in text:
        return "it names a special token, which is no text: write it in quotes"
    if "NoExtension" in text:
        return "no answer follows it"
    if "Too many items" in text:
        return "it is too large, or what it requires contains itself, so that no answer ends: require or list less"
    return line(text)


def line(text: str) -> str:
    """Return a text of llguidance in one line."""
    return " ".join(text.removesuffix("<non-verbose/>").split())[:300]
