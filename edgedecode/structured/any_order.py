"""Rules for objects and lists: optional properties in any place, and no gap in front of separators.

llguidance takes properties in the schema's order. A required property that a model writes too early is asked for again
later; an optional one that another has preceded could never follow. So the rules here remember, in the bits of
llguidance's parametric rules, which properties an object has. Required ones keep their order, which is forced.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from edgedecode.typed_json import JsonValue

from .one_schema import ANNOTATIONS, ARRAY, OBJECT, has_type, is_whole, options, said

_Schema = dict[str, JsonValue]

_PROPERTIES, _PLACES = 60, 50
"""Most properties of such an object, since a parameter has 64 bits, and most places of a list."""
_REFERRING = 20
"""Most parts that llguidance compiles with the whole schema, for what they refer to."""
_WHOLE = "-?(0|[1-9][0-9]{0,19})"
_NUMBERS = {"integer": f"/{_WHOLE}/", "number": rf"/{_WHOLE}(\.[0-9]{{1,20}})?([eE][+-]?[0-9]{{1,3}})?/"}
"""Those without limits, as terminals: of as many digits as 64 bits have, since small models go on with zeros."""
_KEY = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'
"""Any property's name, as a terminal."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """What is between the parts of JSON, in Lark's syntax. options: the same for what llguidance compiles.

    rules: those that the others name.
    """

    comma: str
    colon: str
    gap: str
    options: Mapping[str, JsonValue]
    rules: tuple[str, ...] = ()


def any_order(schema: _Schema, spelling: Spelling) -> list[str]:
    """Return rules for `json`; none if they describe no object or list, or if they would be too many.

    Those that are empty have no gap between their brackets: a model that wants to write something there would fill it.

    llguidance compiles what is not described here, with the schema's order of properties, and with a gap wherever JSON
    may have one: objects with several patterns, open ones with a number of properties, options beside other keywords.
    """
    if any("$id" in each for each in (schema, *_values(schema.get("$defs")))):
        return []
    rules = _Rules(schema, spelling)
    try:
        start = rules.rule(schema)
    except RecursionError:  # values may be nested more deeply than schemas
        return []
    needed = rules.used and rules.referring <= _REFERRING and not (rules.alike and rules.skips)
    return [f"json: {start}", *rules.lines, *spelling.rules] if needed else []


class _Rules:
    def __init__(self, root: _Schema, spelling: Spelling) -> None:
        self._root, self._spelling = root, spelling
        self._names: dict[str, str] = {}
        self.lines: list[str] = []
        self.used = False
        """Whether they say anything that llguidance would not."""
        self.alike = False
        """Whether two options may begin alike."""
        self.skips = False
        """Whether a part that llguidance compiles has gaps. Where another option is alike, it panics there (1.9.1)."""
        self.referring = 0

    def rule(self, schema: JsonValue) -> str:
        """Return the name of a value's rule."""
        text = json.dumps(schema)
        if text not in self._names:
            self._names[text] = f"v{len(self._names)}"
            self.lines.append(f"{self._names[text]}: {self._value(schema)}")
        return self._names[text]

    def _value(self, schema: JsonValue) -> str:
        if not isinstance(schema, dict):
            return self.rule({}) if schema is True else self._json({"not": {}})
        own = said(schema)
        if literals := _literals(own):
            self.used |= len(literals) > 1
            return " | ".join(literals)
        if parts := options(own, self._root):
            self.alike |= _alike(parts)
            return " | ".join(map(self.rule, parts))
        found, kind = None, own.get("type")
        if own.keys() == {"type"} and isinstance(kind, str) and kind in _NUMBERS:
            self.used = True
            self.lines.append(f"N{len(self.lines)}: {_NUMBERS[kind]}")
            return f"N{len(self.lines) - 1}"
        if kind == "object" and own.keys() <= {"type", "minProperties", "maxProperties", *OBJECT}:
            found = self._object(own)
        if kind == "array" and own.keys() <= {"type", *ARRAY}:
            found = self._array(own)
        return found or self._json(schema)

    def _object(self, own: _Schema) -> str | None:
        """Return the rule of an object, None if llguidance has to compile it."""
        listed, needed = own.get("properties", {}), own.get("required", [])
        if not isinstance(listed, dict) or not isinstance(needed, list) or len(listed) > _PROPERTIES:
            return None
        if any(name not in listed for name in needed) or (further := self._further(own, [*listed])) is None:
            return None
        required = [name for name in listed if name in needed]
        optional = [name for name in listed if name not in needed]
        least, most = own.get("minProperties", 0), own.get("maxProperties", len(listed))
        if not isinstance(least, int) or not isinstance(most, int) or most < max(least, len(required)):
            return None
        bounded = least > len(required) or ("maxProperties" in own and (further or most < len(listed)))
        if bounded and (further or least > len(listed)):
            return None
        if bounded and not most:
            return self._listed("{", "", "}", empty=True)
        pairs = [self._pair(_literal(name), listed[name]) for name in required + optional]
        if bounded:
            return self._sets(pairs, "", required=len(required), least=least, most=most)
        if further and not pairs:
            return self._listed("{", f"{further} ({self._spelling.comma} {further})*", "}", empty=True)
        if further or (optional and len(pairs) > 1):
            return self._sets(pairs, further, required=len(required), least=0, most=len(pairs))
        return self._listed("{", f" {self._spelling.comma} ".join(pairs), "}", empty=not required)

    def _pair(self, key: str, value: JsonValue) -> str:
        return f"{key} {self._spelling.colon} {self.rule(value)}"

    def _further(self, own: _Schema, names: Sequence[str]) -> str | None:
        """Return a pair whose name is none of these, empty if there is none; None if llguidance has to compile it."""
        patterns, rest = own.get("patternProperties") or {}, own.get("additionalProperties", True)
        if not isinstance(patterns, dict):
            return None
        if not patterns:
            return "" if rest is False else self._pair(self._key(names), rest)
        pattern, value = next(iter(patterns.items()))
        if rest is not False or value is False or len(patterns) > 1 or not _is_apart(pattern, names):
            return None
        return self._pair(self.rule({"type": "string", "pattern": pattern}), value)

    def _key(self, names: Sequence[str]) -> str:
        """Return a name that is none of these."""
        if not names:
            return self.rule({"type": "string"})
        self.lines.append(f"K{len(self.lines)}: {_KEY} & ~({' | '.join(map(_literal, names))})")
        return f"K{len(self.lines) - 1}"

    def _sets(self, pairs: list[str], further: str, *, required: int, least: int, most: int) -> str:
        """Return a rule of objects with all required pairs, in order, and each of the others at most once.

        further: a pair that may come several times; empty: none. least, most: how many of the pairs.
        """
        name = f"o{len(self.lines)}"
        self.lines += [f"{name}p{index}: {pair}" for index, pair in enumerate(pairs)]
        firsts = [index for index in range(len(pairs)) if index == 0 or (index >= required and most > required)]
        starts = [f"{name}p{index} {name}s::{1 << index}" for index in firsts]
        ends = f"{self._spelling.gap} {_literal_of('}')}"
        enough = [f"is_ones([0:{required}])"] if required else []
        enough += [f"bit_count_ge(_, {least})"] if least > required else []
        rest = [f"{ends} %if {_both(enough)}" if enough else ends]
        room = [f"bit_count_lt([{required}:{len(pairs)}], {most - required})"] if most < len(pairs) else []
        for index in range(len(pairs)):
            after = [f"bit_set({index - 1})"] if 0 < index < required else []
            when = _both([f"bit_clear({index})", *after, *(room if index >= required else [])])
            rest.append(f"{self._spelling.comma} {name}p{index} {name}s::set_bit({index}) %if {when}")
        if further:
            self.lines.append(f"{name}m: {further}")
            starts.append(f"{name}m {name}s::0")
            rest.append(f"{self._spelling.comma} {name}m {name}s::_")
        self.lines.append(f"{name}s::_ : " + "\n | ".join(rest))
        self.lines.append(f"{name}f: " + " | ".join(starts))
        whole = f"{_literal_of('{')} {self._spelling.gap} {name}f"
        return self._either(whole, "{}", empty=not required and not least)

    def _array(self, own: _Schema) -> str | None:
        """Return the rule of a list, None if llguidance has to compile it."""
        items, places = own.get("items", True), own.get("prefixItems", [])
        least, most = own.get("minItems", 0), own.get("maxItems")
        if not isinstance(items, dict | bool) or not isinstance(places, list) or len(places) > _PLACES:
            return None
        if not isinstance(least, int) or not isinstance(most, int | None):
            return None
        if items is False:
            most = len(places) if most is None else min(most, len(places))
        if most is not None and most < max(1, least):
            return self._listed("[", "", "]", empty=True) if most == least == 0 else None
        inner = self._places((places or [items])[:most], items, least=least, most=most)
        return self._listed("[", inner, "]", empty=not least)

    def _places(self, places: Sequence[JsonValue], items: JsonValue, *, least: int, most: int | None) -> str:
        """Return what is in a list with a schema for each of the first places, `items` for the others."""
        inner = ""
        if most is None or most > len(places):
            counts = f"{max(0, least - len(places))},{'' if most is None else most - len(places)}"
            inner = f"({self._spelling.comma} {self.rule(items)}){{{counts}}}"
        for number in range(len(places) - 1, 0, -1):
            inner = f"{self._spelling.comma} {self.rule(places[number])} {inner}"
            inner = inner if number < least else f"({inner})?"
        return f"{self.rule(places[0])} {inner}"

    def _listed(self, opener: str, inner: str, closer: str, *, empty: bool) -> str:
        """Return the rule of brackets with something between them. empty: or nothing."""
        gap = self._spelling.gap
        whole = f"{_literal_of(opener)} {gap} {inner} {gap} {_literal_of(closer)}" if inner else ""
        return self._either(whole, opener + closer, empty=empty)

    def _either(self, whole: str, brackets: str, *, empty: bool) -> str:
        """Return a rule, or if empty the brackets alone."""
        self.used = True
        return " | ".join(filter(None, [whole, _literal_of(brackets) if empty else ""]))

    def _json(self, schema: _Schema) -> str:
        """Return the rule of a value that llguidance compiles."""
        part = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if '"$ref"' in json.dumps(part):
            self.referring += 1
            part = {name: _moved(value) for name, value in {"all": part, "root": self._root}.items()}
            part = {"allOf": [part["all"]], "$defs": {"root": part["root"]}}
        options = dict(self._spelling.options)
        if _is_scalar(schema) and options.pop("whitespace_pattern", None):
            options["whitespace_flexible"] = False
        self.skips |= "whitespace_pattern" in options
        return f"%json {json.dumps({**part, 'x-guidance': options})}"


def _both(conditions: Sequence[str]) -> str:
    return reduce("and({}, {})".format, conditions)


def _alike(parts: Sequence[JsonValue]) -> bool:
    """Return whether two of these schemas may describe objects, or two of them lists."""
    kinds = [each.get("type") if isinstance(each, dict) else None for each in parts]
    left = [kind for kind, each in zip(kinds, parts, strict=True) if not isinstance(each, dict) or not _is_scalar(each)]
    return len(left) > 1 and sorted(map(str, left)) != ["array", "object"]


def _is_scalar(schema: _Schema) -> bool:
    """Return whether a value has no gap inside of it, so that there would be two in front of it."""
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return not any(isinstance(each, dict | list) for each in values)
    kind = schema.get("type")
    return kind is not None and not has_type({}, kind) and not has_type([], kind)


def _literals(own: _Schema) -> list[str]:
    """Return the spellings of a value that is no object or list, the schema's first; none: llguidance knows them."""
    value = own.get("const")
    if own.keys() - {"type"} != {"const"} or not has_type(value, own.get("type")):
        return []
    if is_whole(value):
        return [_literal(value), _literal_of(f"{value:.0f}")]
    return [] if isinstance(value, float | dict | list) else [_literal(value)]


def _is_apart(pattern: str, names: Sequence[str]) -> bool:
    """Return whether a pattern certainly matches none of these names."""
    try:
        return not any(re.search(pattern, name) for name in names)
    except re.error:  # it may follow another standard
        return not names


def _moved(value: JsonValue) -> JsonValue:
    """Return a schema whose references to the root lead to its definition `root`."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _moved(each) for name, each in value.items()}
    target = value.get("$ref")
    return {**moved, "$ref": f"#/$defs/root{target[1:]}"} if isinstance(target, str) and target[:1] == "#" else moved


def _literal(value: JsonValue) -> str:
    """Return a text, or another value that is no object or list, as JSON has it, in Lark's syntax."""
    return _literal_of(json.dumps(value, ensure_ascii=False))


def _literal_of(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _values(value: JsonValue) -> list[_Schema]:
    return [each for each in value.values() if isinstance(each, dict)] if isinstance(value, dict) else []
