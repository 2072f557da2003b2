"""The nearest schema that can be followed, for requests that do not insist on theirs.

Every change allows more than the given schema, never less. It is listed with its place: a strict request is refused
with the reason, another one is told. What is dropped has to be checked after decoding.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgedecode.typed_json import JsonValue

from .closing import closed
from .guidance import schema_fault
from .schema_check import fault_of_keyword, named, with_places

_Schema = dict[str, JsonValue]

OPEN: _Schema = {"type": "object"}
"""Any object: the loosest schema of a function's arguments."""
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_DROPPED = frozenset(
    {
        *("not", "if", "then", "else", "propertyNames", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems"),
        *("contentSchema", "$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
    }
)
"""Keywords that only restrict, and that llguidance does not follow."""
_SILENT = frozenset(
    {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$comment", "$vocabulary"}
)
"""Keywords that restrict nothing."""
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_NAMES = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_FURTHER: tuple[tuple[str, ...], ...] = (
    ("minProperties", "maxProperties", "minItems", "maxItems"),
    (*_NUMBERS, "minLength", "maxLength"),
    ("pattern", "format"),
    ("allOf", "anyOf", "oneOf", "$ref", "$defs", "definitions"),
)
"""What is dropped one after the other while a schema is still refused, the least informative first."""


@dataclass(frozen=True, slots=True)
class Change:
    """A keyword that is not followed. path: its place, such as `.properties.when.format`."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Nearest:
    """A schema that can be followed, and what it leaves out; no changes: it is the given one."""

    schema: _Schema
    changes: tuple[Change, ...] = ()


def nearest(given: _Schema, *, path: str = "") -> Nearest:
    """Return the nearest schema that can be followed. path: the place of the schema, in front of those of changes."""
    try:
        schema = in_json_schema(_as_part(given))
        fault = schema_fault(schema)
        if fault is None:
            return Nearest(schema)
        loosening = _Loosening(schema)
        loose = loosening.schema(closed(schema), path)
    except RecursionError:
        return Nearest(OPEN, (Change(path, "it is nested too deeply"),))
    changes = loosening.changes
    if (fault := schema_fault(loose)) is None:
        return Nearest(loose, tuple(changes))
    if '"oneOf"' in json.dumps(loose):
        loose = _renamed_options(loose)
        changes.append(Change(path, "the options of a oneOf do not provably exclude each other: use anyOf"))
        if schema_fault(loose) is None:
            return Nearest(loose, tuple(changes))
    for keywords in _FURTHER:
        loose = _without(loose, keywords)
        if schema_fault(loose) is None:
            return Nearest(loose, (*changes, Change(path, f"{fault} (left out: {', '.join(keywords)})")))
    return Nearest(OPEN, (*changes, Change(path, fault)))


def _as_part(given: _Schema) -> _Schema:
    """Return a schema that may become a part of another one: without what names it."""
    return {name: value for name, value in given.items() if name not in ("$schema", "$id", "id")}


def in_json_schema(schema: _Schema) -> _Schema:
    """Return a schema with what OpenAPI 3.0, Gemini and PHP write in other ways written in JSON Schema's."""
    return _mapped(schema, _translated)


def _translated(schema: _Schema) -> _Schema:
    """Translate `nullable` (OpenAPI 3.0), types in capitals (Gemini) and empty objects that are lists (PHP)."""
    schema |= {name: {} for name in _BY_NAME if schema.get(name) == []}
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        written = [kinds] if isinstance(kinds, str) else kinds
        small = [each.lower() if isinstance(each, str) and each.lower() in _TYPES else each for each in written]
        schema["type"] = small[0] if isinstance(kinds, str) else small
    if schema.pop("nullable", None) is not True:
        return schema
    if isinstance(values := schema.get("enum"), list):
        schema["enum"] = [*values, *([] if None in values else [None])]
    if isinstance(kinds, str | list):
        schema["type"] = [*small, *([] if "null" in small else ["null"])]
    elif schema and "enum" not in schema:
        definitions: _Schema = {name: schema.pop(name) for name in ("$defs", "definitions") if name in schema}
        return {"anyOf": [schema, {"type": "null"}], **definitions}
    return schema


class _Loosening:
    """Copies schemas without what cannot be followed. root: where references lead."""

    def __init__(self, root: _Schema) -> None:
        self._root = root
        self.changes: list[Change] = []

    def schema(self, given: _Schema, path: str) -> _Schema:
        """Return the nearest schema as far as its keywords tell one by one."""
        result = dict(with_places(given))
        for keyword in list(result):
            place = f"{path}.{keyword}"
            if keyword in _SILENT:
                del result[keyword]
            elif keyword in _DROPPED:
                self._drop(result, keyword, place, f"{keyword} cannot be followed")
                if keyword in ("dependentSchemas", "dependencies", "unevaluatedProperties", "then", "else"):
                    _open(result, given)
            elif (reason := _fault(keyword, result)) is not None:
                self._drop(result, keyword, place, reason)
        self._widen(result, path)
        for keyword in _BY_NAME:
            if isinstance(inner := result.get(keyword), dict):
                result[keyword] = {name: self._value(each, f"{path}.{keyword}.{name}") for name, each in inner.items()}
        for keyword in _LISTS:
            if isinstance(options := result.get(keyword), list):
                places = enumerate(options)
                result[keyword] = [self._value(each, f"{path}.{keyword}[{place}]") for place, each in places]
        for keyword in ("items", "additionalProperties", "additionalItems"):
            if keyword in result:
                result[keyword] = self._value(result[keyword], f"{path}.{keyword}")
        return result

    def _value(self, given: JsonValue, path: str) -> JsonValue:
        return self.schema(given, path) if isinstance(given, dict) else given

    def _drop(self, result: _Schema, keyword: str, place: str, reason: str) -> None:
        if (keyword, result[keyword]) != ("uniqueItems", False):  # which is the default
            self.changes.append(Change(place, reason))
        del result[keyword]

    def _widen(self, result: _Schema, path: str) -> None:
        """Take values that older drafts and OpenAPI write in another way, and leave out those that are in no draft."""
        if isinstance(result.get("items"), list):  # which differs from the prefixItems that were left out
            del result["items"]
            result.pop("additionalItems", None)
        if (kinds := result.get("type")) is not None:
            self._widen_type(result, kinds, f"{path}.type")
        if isinstance(patterns := result.get("patternProperties"), dict):
            wrong = [name for name in patterns if schema_fault({"type": "string", "pattern": name}) is not None]
            if wrong:
                self.changes.append(
                    Change(f"{path}.patternProperties", f"the pattern {wrong[0][:80]!r} is not supported")
                )
                result["patternProperties"] = {name: each for name, each in patterns.items() if name not in wrong}
                result["additionalProperties"] = True
        if isinstance(reference := result.get("$ref"), str) and reference != "#" and not named(reference, self._root):
            self._drop(result, "$ref", f"{path}.$ref", f"{reference[:80]!r} leads nowhere in this schema")

    def _widen_type(self, result: _Schema, kinds: JsonValue, place: str) -> None:
        given = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        known = [each for each in given if isinstance(each, str) and each in _TYPES]
        if not given or len(known) < len(given):
            self._drop(result, "type", place, f"{kinds!r:.80} is not a type of JSON")


def _open(result: _Schema, given: _Schema) -> None:
    """Let an object have properties that only a dropped keyword names."""
    if (
        "properties" in result
        and "additionalProperties" not in given
        and given.get("unevaluatedProperties", {}) is not False
    ):
        result["additionalProperties"] = True


def _fault(keyword: str, schema: _Schema) -> str | None:
    """Return why the value of a keyword cannot be followed."""
    value = schema[keyword]
    check = _CHECKS.get(keyword)
    if check is not None and not check(value):
        return f"{value!r:.80} is not a value of {keyword}"
    if keyword in ("format", "pattern"):
        return schema_fault({"type": schema.get("type", "string"), keyword: value})
    if keyword == "maxProperties":
        inner = {each: own for each in _NAMES if isinstance(own := schema.get(each), dict)}
        names: _Schema = {each: dict.fromkeys(own, True) for each, own in inner.items()}
        rest: _Schema = {"type": "object", "additionalProperties": schema.get("additionalProperties") is not False}
        return schema_fault({**names, **rest, "required": schema.get("required", []), "maxProperties": value})
    if keyword == "additionalItems" and "prefixItems" in schema:
        return "additionalItems belongs to a list of items, of an older draft"
    return fault_of_keyword(keyword, schema)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_schema(value: JsonValue) -> bool:
    return isinstance(value, dict | bool)


def _is_mapping(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_options(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_names(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_CHECKS: dict[str, Callable[[JsonValue], bool]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_BY_NAME, _is_mapping),
    **dict.fromkeys(_LISTS, _is_options),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _is_schema),
    "items": lambda value: _is_schema(value) or _is_options(value),
    "required": _is_names,
    "enum": lambda value: isinstance(value, list) and bool(value),
    **dict.fromkeys(("format", "pattern", "$ref"), lambda value: isinstance(value, str)),
}
"""What a keyword's value has to be; another is left out, as where an older draft wrote `required: true`."""


def _renamed_options(schema: _Schema) -> _Schema:
    """Return a schema whose `oneOf` are `anyOf`, which allow answers that fit several of their options."""

    def renamed(each: _Schema) -> _Schema:
        options = each.pop("oneOf", None)
        if isinstance(options, list):
            also = each.get("anyOf")
            each["anyOf"] = options
            if also is not None:
                each["allOf"] = [*(every if isinstance(every := each.get("allOf"), list) else []), {"anyOf": also}]
        return each

    return _mapped(schema, renamed)


def _without(schema: _Schema, keywords: Iterable[str]) -> _Schema:
    """Return a schema without some keywords. Objects whose keyword may name further properties become open."""

    def left(each: _Schema) -> _Schema:
        dropped = each.keys() & {*keywords}
        if dropped & {"allOf", "anyOf", "oneOf", "$ref"}:
            if "properties" in each:
                each["additionalProperties"] = True
            if "type" not in each and (kind := _type_of(each, schema)) is not None:
                each["type"] = kind
        return {name: value for name, value in each.items() if name not in dropped}

    return _mapped(schema, left)


def _type_of(schema: _Schema, root: _Schema) -> JsonValue:
    """Return the type that what a schema refers to, or each of its options, has; None: they say no one type."""
    reference, options = schema.get("$ref"), schema.get("anyOf", schema.get("oneOf"))
    if isinstance(reference, str):
        options = [named(reference, root)]
    types = [each.get("type") for each in options if isinstance(each, dict)] if isinstance(options, list) else []
    same = types and isinstance(options, list) and types == [types[0]] * len(options)
    return types[0] if same else None


def _mapped(schema: _Schema, change: Callable[[_Schema], _Schema]) -> _Schema:
    """Return a copy with every schema inside of it changed."""
    result = dict(schema)
    for keyword in _BY_NAME:
        if isinstance(inner := result.get(keyword), dict):
            result[keyword] = {name: _changed(each, change) for name, each in inner.items()}
    for keyword in _LISTS:
        if isinstance(options := result.get(keyword), list):
            result[keyword] = [_changed(each, change) for each in options]
    for keyword in ("items", "additionalProperties"):
        if keyword in result:
            result[keyword] = _changed(result[keyword], change)
    return change(result)


def _changed(value: JsonValue, change: Callable[[_Schema], _Schema]) -> JsonValue:
    return _mapped(value, change) if isinstance(value, dict) else value
