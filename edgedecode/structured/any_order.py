"""Rules for objects with optional properties: a model may write those in any place.

llguidance takes properties in the schema's order. A required property that a model writes too early is asked for again
later; an optional one that another has preceded could never follow. So the rules here remember, in the bits of
llguidance's parametric rules, which properties an object has. Required ones keep their order, which is forced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode.typed_json import JsonValue

from .schema_check import named

_Schema = dict[str, JsonValue]

_ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
_DEFINITIONS = {"$defs", "definitions"}
_ANY: list[JsonValue] = [{"type": "object"}, {"type": "array"}, {"type": ["string", "number", "boolean", "null"]}]
_SCALARS = {"string", "number", "integer", "boolean", "null"}
_PROPERTIES = 60
"""Most properties of such an object: a parameter has 64 bits."""
_REFERRING = 20
"""Most parts that llguidance compiles with the whole schema, for what they refer to."""


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

    Objects that join several schemas, or have properties besides those that they list, keep the schema's order.
    """
    if any("$id" in each for each in (schema, *_values(schema.get("$defs")))):
        return []
    rules = _Rules(schema, spelling)
    start = rules.rule(schema)
    needed = rules.used and rules.referring <= _REFERRING
    return [f"json: {start}", *rules.lines, *spelling.rules] if needed else []


class _Rules:
    def __init__(self, root: _Schema, spelling: Spelling) -> None:
        self._root, self._spelling = root, spelling
        self._names: dict[str, str] = {}
        self.lines: list[str] = []
        self.used = False
        """Whether they describe an object or a list: llguidance would allow a gap in front of separators too."""
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
        said = {name: value for name, value in schema.items() if name not in _ANNOTATIONS | _DEFINITIONS}
        options, types = self._options(said), said.get("type")
        if options:
            return " | ".join(map(self.rule, options))
        if types == "object" and said.keys() <= {"type", "properties", "required", "additionalProperties"}:
            return self._object(said) or self._json(schema)
        if types == "array" and said.keys() <= {"type", "prefixItems", "items", "minItems", "maxItems"}:
            return (self._tuple(said) if "prefixItems" in said else self._array(said)) or self._json(schema)
        if said.keys() - {"type"} == {"const"} and isinstance(said["const"], str):
            return _literal(said["const"])
        return self._json(schema)

    def _options(self, said: _Schema) -> Sequence[JsonValue]:
        """Return the schemas of which one alone describes the value."""
        reference, types = said.get("$ref"), said.get("type")
        if not said:
            return _ANY
        if said.keys() == {"$ref"} and isinstance(reference, str) and (found := named(reference, self._root)):
            return [found]
        if len(said) == 1:
            for keyword in ("anyOf", "oneOf", "allOf"):
                options = said.get(keyword)
                if isinstance(options, list) and (keyword != "allOf" or len(options) == 1):
                    return options
        if isinstance(types, list) and {"object", "array"} & {each for each in types if isinstance(each, str)}:
            return [{**said, "type": each} for each in types]
        return ()

    def _object(self, said: _Schema) -> str | None:
        """Return the rule of an object, None if llguidance has to compile it."""
        listed, needed = said.get("properties"), said.get("required", [])
        values = said.get("additionalProperties", True)
        if said.keys() <= {"type", "additionalProperties"} and values is not False:
            pair = f"{self.rule({'type': 'string'})} {self._spelling.colon} {self.rule(values)}"
            return self._listed("{", f"{pair} ({self._spelling.comma} {pair})*", "}", empty=True)
        if said.get("additionalProperties") is not False or not isinstance(listed, dict):
            return None
        if not isinstance(needed, list) or len(listed) > _PROPERTIES or any(name not in listed for name in needed):
            return None
        required = [name for name in listed if name in needed]
        optional = [name for name in listed if name not in needed]
        pairs = [f"{_literal(name)} {self._spelling.colon} {self.rule(listed[name])}" for name in required + optional]
        if optional and len(pairs) > 1:
            return self._sets(pairs, required=len(required))
        return self._listed("{", f" {self._spelling.comma} ".join(pairs), "}", empty=not required)

    def _sets(self, pairs: list[str], *, required: int) -> str:
        """Return a rule of objects with all required pairs, in order, and each of the others at most once."""
        name = f"o{len(self.lines)}"
        self.lines += [f"{name}p{index}: {pair}" for index, pair in enumerate(pairs)]
        firsts = [index for index in range(len(pairs)) if index == 0 or index >= required]
        ends = f"{self._spelling.gap} {_literal_of('}')}"
        rest = [f"{ends} %if is_ones([0:{required}])" if required else ends]
        for index in range(len(pairs)):
            free = f"bit_clear({index})"
            when = free if index == 0 or index >= required else f"and({free}, bit_set({index - 1}))"
            rest.append(f"{self._spelling.comma} {name}p{index} {name}s::set_bit({index}) %if {when}")
        self.lines.append(f"{name}s::_ : " + "\n | ".join(rest))
        self.lines.append(f"{name}f: " + " | ".join(f"{name}p{index} {name}s::{1 << index}" for index in firsts))
        return self._either(f"{_literal_of('{')} {self._spelling.gap} {name}f", "{}", empty=not required)

    def _array(self, said: _Schema) -> str | None:
        """Return the rule of a list, None if llguidance has to compile it."""
        items, least, most = said.get("items", True), said.get("minItems", 0), said.get("maxItems")
        if (
            not (isinstance(items, dict) or items is True)
            or not isinstance(least, int)
            or not (most is None or isinstance(most, int))
        ):
            return None
        if most is not None and most < max(1, least):
            return self._listed("[", "", "]", empty=True) if most == least == 0 else None
        item, upper = self.rule(items), "" if most is None else most - 1
        more = f"{item} ({self._spelling.comma} {item}){{{max(0, least - 1)},{upper}}}"
        return self._listed("[", more, "]", empty=not least)

    def _tuple(self, said: _Schema) -> str | None:
        """Return the rule of a list with a schema for each place, None if llguidance has to compile it."""
        places = said["prefixItems"]
        if not isinstance(places, list) or not places or said.get("minItems") != len(places):
            return None
        if said.get("maxItems", len(places) if said.get("items") is False else None) != len(places):
            return None
        return self._listed("[", f" {self._spelling.comma} ".join(map(self.rule, places)), "]", empty=False)

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
        part = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        if '"$ref"' in json.dumps(part):
            self.referring += 1
            part = {name: _moved(value) for name, value in {"all": part, "root": self._root}.items()}
            part = {"allOf": [part["all"]], "$defs": {"root": part["root"]}}
        options = dict(self._spelling.options)
        if _is_scalar(schema) and options.pop("whitespace_pattern", None):
            options["whitespace_flexible"] = False
        return f"%json {json.dumps({**part, 'x-guidance': options})}"


def _is_scalar(schema: _Schema) -> bool:
    """Return whether a value has no gap inside of it, so that there would be two in front of it."""
    types = schema.get("type")
    return {*types} <= _SCALARS if isinstance(types, list) else isinstance(types, str) and types in _SCALARS


def _moved(value: JsonValue) -> JsonValue:
    """Return a schema whose references to the root lead to its definition `root`."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _moved(each) for name, each in value.items()}
    target = value.get("$ref")
    return {**moved, "$ref": f"#/$defs/root{target[1:]}"} if isinstance(target, str) and target[:1] == "#" else moved


def _literal(text: str) -> str:
    """Return a text as JSON has it, in Lark's syntax."""
    return _literal_of(json.dumps(text, ensure_ascii=False))


def _literal_of(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _values(value: JsonValue) -> list[_Schema]:
    return [each for each in value.values() if isinstance(each, dict)] if isinstance(value, dict) else []
