"""Schemas that say the same in keywords of which rules can be made: values as their types, several objects as one."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from edgedecode.typed_json import JsonValue

from .schema_check import named

_Schema = dict[str, JsonValue]

ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
DEFINITIONS = {"$defs", "definitions"}
OBJECT = {"properties", "patternProperties", "required", "additionalProperties"}
ARRAY = {"prefixItems", "items", "minItems", "maxItems"}
SCALARS = ("string", "number", "integer", "boolean", "null")
_TYPES: dict[type, tuple[str, ...]] = {
    dict: ("object",),
    list: ("array",),
    str: ("string",),
    bool: ("boolean",),
    type(None): ("null",),
    int: ("integer", "number"),
    float: ("number",),
}
_VALUES = 200
"""Most values that are described one by one."""
_DEPTH = 20
"""Most references and `allOf` inside of each other."""


def said(schema: _Schema) -> _Schema:
    """Return a schema without what says nothing about values."""
    return {name: value for name, value in schema.items() if name not in ANNOTATIONS | DEFINITIONS}


def options(schema: _Schema, root: _Schema) -> Sequence[JsonValue]:
    """Return schemas of which one alone describes what a schema does; none: it is not known in such parts.

    schema: without what says nothing. root: where references lead.
    """
    kind, keywords = schema.get("type"), schema.keys() - {"type"}
    if not schema:
        return _any_but()
    if len(schema) == 1:
        ((keyword, value),) = schema.items()
        if keyword == "$ref" and isinstance(value, str) and (found := named(value, root)):
            return [found]
        if isinstance(value, list) and (keyword in ("anyOf", "oneOf") or (keyword == "allOf" and len(value) == 1)):
            return [{}] if any(each is True or (isinstance(each, dict) and not said(each)) for each in value) else value
    if isinstance(kind, list) and any(each in ("object", "array", "number", "integer") for each in kind):
        return [{**schema, "type": each} for each in kind]
    if keywords and kind is None and keywords <= OBJECT:
        return [{**schema, "type": "object"}, *_any_but("object")]
    if keywords and kind is None and keywords <= ARRAY:
        return [{**schema, "type": "array"}, *_any_but("array")]
    if keywords in ({"const"}, {"enum"}):
        return _values(schema.get("enum", [schema.get("const")]), kind)
    return [joint] if keywords & {"allOf", "$ref"} and (joint := _joined(schema, root)) else ()


def _any_but(*kinds: str) -> list[JsonValue]:
    left: list[JsonValue] = [{"type": each} for each in ("object", "array") if each not in kinds]
    return [*left, {"type": [*SCALARS]}]


def _values(given: JsonValue, kind: JsonValue) -> Sequence[JsonValue]:
    """Return a schema for each value, if one of them may be spelled in several ways."""
    several = isinstance(given, list) and any(isinstance(each, dict | list) or is_whole(each) for each in given)
    if not isinstance(given, list) or not several or len(given) > _VALUES:
        return ()
    return [_of_value(each) for each in given] if all(has_type(each, kind) for each in given) else ()


def is_whole(value: JsonValue) -> bool:
    """Return whether a value is a whole number that is written with a fraction."""
    return isinstance(value, float) and value.is_integer()


def has_type(value: JsonValue, kind: JsonValue) -> bool:
    """Return whether a value is of a type, or one of several; None: of any."""
    types = {*_TYPES[type(value)], *(("integer",) if is_whole(value) else ())}
    return kind is None or any(each in types for each in (kind if isinstance(kind, list) else [kind]))


def _of_value(value: JsonValue) -> JsonValue:
    """Return the schema of one value, without `const` for an object or a list."""
    if isinstance(value, dict):
        properties: _Schema = {name: _of_value(each) for name, each in value.items()}
        return {"type": "object", "properties": properties, "required": [*value], "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [*map(_of_value, value)], "minItems": len(value), "items": False}
    return {"const": value}


def _joined(schema: _Schema, root: _Schema) -> _Schema | None:
    """Return one schema for an object that several describe together; None: for what else they say."""
    parts = [*_parts(schema, root, _DEPTH)]
    if any(each is None or each.keys() - {"type", "properties", "required", "additionalProperties"} for each in parts):
        return None
    found = [each for each in parts if each]
    if {*(json.dumps(each["type"]) for each in found if "type" in each)} != {'"object"'}:
        return None
    listed = [each.get("properties", {}) for each in found]
    needed = [each.get("required", []) for each in found]
    names = dict.fromkeys(name for each in listed if isinstance(each, dict) for name in each)
    required = dict.fromkeys(name for each in needed if isinstance(each, list) for name in map(str, each))
    further = [each.get("additionalProperties", True) for each in found]
    properties: _Schema = {}
    for name in names:
        every = [own.get(name, rest) for own, rest in zip(listed, further, strict=True) if isinstance(own, dict)]
        if (value := _all_of(every)) is not False:
            properties[name] = value
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": _all_of(further),
    }


def _parts(schema: JsonValue, root: _Schema, depth: int) -> Iterator[_Schema | None]:
    """Yield the schemas that describe a value together, without `allOf`; None for what cannot be taken apart."""
    if not isinstance(schema, dict) or not depth:
        yield None
        return
    own = said(schema)
    every, reference = own.pop("allOf", []), own.pop("$ref", None)
    yield own
    if reference is not None:
        yield from _parts(named(reference, root) if isinstance(reference, str) else None, root, depth - 1)
    for each in every if isinstance(every, list) else [None]:
        yield from _parts(each, root, depth - 1)


def levels(schema: JsonValue, root: _Schema, most: int, known: dict[tuple[str, int], int]) -> int:
    """Return how many objects and lists of a value may be inside of each other, `most` if they may be more.

    known: what was found for references so far.
    """
    if not isinstance(schema, dict) or not most:
        return 0 if schema is False else most
    own: dict[str, Any] = said(schema)
    listed = [value if isinstance(value := own.get(name), list) else [] for name in ("anyOf", "oneOf", "allOf")]
    found = [levels(each, root, most, known) for options in listed for each in options]
    if isinstance(reference := own.get("$ref"), str):
        if (reference, most) not in known:
            known[reference, most] = 0  # one that leads to itself adds nothing
            known[reference, most] = levels(named(reference, root) or True, root, most, known)
        found.append(known[reference, most])
    values = own["enum"] if isinstance(own.get("enum"), list) else [own.get("const")]
    if isinstance(values, list) and any(isinstance(each, dict | list) for each in values):
        return most
    inside = [own[name] for name in ("additionalProperties", "items") if name in own]
    inside += own["prefixItems"] if isinstance(own.get("prefixItems"), list) else []
    for name in ("properties", "patternProperties"):
        inside += own[name].values() if isinstance(own.get(name), dict) else []
    found += [1 + levels(each, root, most - 1, known) for each in inside]
    scalar = own.keys() & {"enum", "const"} or not (has_type({}, own.get("type")) or has_type([], own.get("type")))
    return max(found, default=0 if scalar else most)


def _all_of(schemas: Sequence[JsonValue]) -> JsonValue:
    """Return what all of these schemas say about one value."""
    if False in schemas:
        return False
    left = {json.dumps(each): each for each in schemas if each not in (True, {})}
    return {"allOf": [*left.values()]} if len(left) > 1 else next(iter(left.values()), True)
