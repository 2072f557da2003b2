"""Grammars that an answer must match."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from edgedecode.errors import InputError
from edgedecode.typed_json import JsonValue

_MOST_CHARACTERS = 1 << 18
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def is_text(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class GrammarKind(StrEnum):
    """How a grammar is written."""

    SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A JSON Schema, a regular expression, or a grammar in Lark's or llama.cpp's syntax. Raises InputError if too long.

    Only for a JSON Schema: or_text: also accept any text that does not begin with a brace. lines: accept up to this
    many values, one on each line.
    """

    kind: GrammarKind
    text: str
    or_text: bool = False
    lines: int = 1

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError(f"the {self.kind} is empty")
        if len(self.text) > _MOST_CHARACTERS:
            raise InputError(f"the {self.kind} has {len(self.text)} characters, the limit is {_MOST_CHARACTERS}")
        if not is_text(self.text):
            raise InputError(f"the {self.kind} has half of a surrogate pair, which is no character")

    @classmethod
    def of_schema(cls, schema: JsonValue, *, or_text: bool = False, lines: int = 1) -> Grammar:
        """Return the grammar of a parsed JSON Schema. Raises InputError for anything but an object or true."""
        if not isinstance(schema, dict) and schema is not True:
            raise InputError("a JSON Schema is an object")
        try:
            return cls(GrammarKind.SCHEMA, json.dumps(schema), or_text, lines)
        except RecursionError:
            raise InputError("the JSON Schema is nested too deeply") from None

    @classmethod
    def of_regex(cls, pattern: str) -> Grammar:
        """Return the grammar of an answer that matches a regular expression."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def of_rules(cls, text: str) -> Grammar:
        """Return a grammar of rules: llama.cpp's syntax (GBNF) if one is defined by `::=`, else Lark's."""
        return cls(GrammarKind.GBNF if _GBNF_RULE.search(text) else GrammarKind.LARK, text)

    @classmethod
    def of_choices(cls, choices: list[str]) -> Grammar:
        """Return the grammar of an answer that is one of these texts."""
        return cls(GrammarKind.REGEX, "|".join(re.escape(each) for each in choices))

    @classmethod
    def json_object(cls) -> Grammar:
        """Return the grammar of any JSON object."""
        return cls.of_schema({"type": "object"})
