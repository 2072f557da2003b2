"""Objects that list their properties have no others, nor have lists that list their places, unless the schema says so.

JSON Schema leaves them open, and a model then invents properties or items until its answer is cut off. What follows the
closed schema follows the given one too. Where several schemas describe one object (`allOf`, `then`, a `$ref` with
keywords beside it), they are closed together, over the names of all.
"""

import json
from collections.abc import Iterator, Sequence

from edgedecode.typed_json import JsonValue

from .schema_check import fits, named

_Schema = dict[str, JsonValue]

_LISTS, _SCHEMAS, _BY_NAME = ("allOf", "anyOf", "oneOf"), ("if", "then", "else"), ("dependentSchemas", "dependencies")
_BESIDE = {*_LISTS, *_SCHEMAS, *_BY_NAME, "$ref"}
"""Keywords whose schemas describe the same value as the schema that they stand in."""
_OBJECT = {"properties", "patternProperties", "required", "minProperties"}
_OPEN = {"additionalProperties", "unevaluatedProperties", "propertyNames", "$dynamicRef", "$recursiveRef"}
"""Keywords that say which other properties there may be."""
_OPEN_LIST = {"items", "unevaluatedItems", "contains", "$dynamicRef", "$recursiveRef"}
"""Keywords that say which other items there may be."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LEFT = {*_BESIDE, *_NAMED, "not", "contains", "const", "enum", "default", "examples", "required"}
"""Keywords whose value has no schemas of other values, or some in which closing would let more through."""
_COPIES = 100
"""Most definitions that are copied to where they are joined with others."""


class _TooLargeError(Exception):
    """Definitions that are joined with others are too many, or lead back to themselves."""


def closed(schema: _Schema) -> _Schema:
    """Return a schema whose objects have no properties but those that it lists.

    Objects without `properties`, with `additionalProperties` or the like, and those that need more properties than they
    list, are left as they are; so is a schema in which a `$ref` that is joined with others leads to itself.
    """
    result = _copy(schema)
    try:
        _Closing(schema).close(result)
    except _TooLargeError:
        return schema
    return result if fits(result) else schema


def _copy(schema: _Schema) -> _Schema:
    """Return a copy in which no two places are one object."""
    copied: _Schema = json.loads(json.dumps(schema))
    return copied


class _Closing:
    def __init__(self, given: _Schema) -> None:
        self._given = given
        self._copies = 0

    def close(self, root: _Schema) -> None:
        todo: list[JsonValue] = [root]
        while todo:
            value = todo.pop()
            if isinstance(value, list):
                todo += value
            elif isinstance(value, dict):
                todo += self._close_one(value)

    def _close_one(self, schema: _Schema) -> Iterator[JsonValue]:
        """Close what a schema says about one value. Yields the schemas of other values, and those that stand alone."""
        if _is_choice(schema):
            yield from (schema[name] for name in _LISTS if name in schema)
            yield from _inside(schema)
            return
        self._copy_references(schema)
        together = list(_together(schema))
        _close_object(schema, together)
        _close_list(schema)
        for each in together:
            yield from _inside(each)

    def _copy_references(self, schema: _Schema) -> None:
        """Put the definitions that are joined with others in their place: where they are defined, they are closed."""
        reference, options = schema.get("$ref"), schema.get("allOf", [])
        found = named(reference, self._given) if isinstance(reference, str) else None
        if found is not None and isinstance(options, list):
            self._copies += 1
            if self._copies > _COPIES:
                raise _TooLargeError
            del schema["$ref"]
            schema["allOf"] = [_copy(found), *options]
        for each in _beside(schema):
            self._copy_references(each)


def _is_choice(schema: _Schema) -> bool:
    """Return whether one option, or a reference, alone describes the value."""
    beside, every = schema.keys() & _BESIDE, schema.get("allOf")
    if len(beside) != 1 or schema.keys() & (_OBJECT | _OPEN | _OPEN_LIST):
        return False
    return beside <= {"anyOf", "oneOf", "$ref"} or (isinstance(every, list) and len(every) == 1)


def _close_object(schema: _Schema, together: Sequence[_Schema]) -> None:
    """Close the object that a schema describes together with others."""
    listed, required = _names(together, "properties"), _names(together, "required")
    names, patterns = dict.fromkeys([*listed, *required]), _names(together, "patternProperties")
    least = [each["minProperties"] for each in together if isinstance(each.get("minProperties"), int)]
    if (
        not any(isinstance(each.get("properties"), dict) for each in together)
        or any(each.keys() & (_OPEN | {"$ref"}) or _is_literal(each) for each in together)
        or any(isinstance(each, int) and each > len(names) for each in least)
    ):
        return
    _add(schema, "properties", names)
    _add(schema, "patternProperties", patterns)
    schema["additionalProperties"] = False


def _close_list(schema: _Schema) -> None:
    """Close a list with a schema for each of its places, unless it needs more of them."""
    places, least = schema.get("prefixItems"), schema.get("minItems", 0)
    enough = isinstance(places, list) and isinstance(least, int) and least <= len(places)
    if enough and not schema.keys() & (_BESIDE | _OPEN_LIST):
        schema["items"] = False


def _names(together: Sequence[_Schema], keyword: str) -> list[str]:
    """Return the names that a keyword of these schemas lists."""
    values = [each.get(keyword) for each in together]
    return [name for value in values if isinstance(value, dict | list) for name in value if isinstance(name, str)]


def _add(schema: _Schema, keyword: str, names: Sequence[str] | dict[str, None]) -> None:
    """List names that other schemas describe."""
    own = schema.get(keyword)
    if names and isinstance(own, dict | None):
        schema[keyword] = {**(own or {}), **{name: True for name in names if name not in (own or {})}}


def _is_literal(schema: _Schema) -> bool:
    """Return whether a schema gives whole objects."""
    values = schema.get("enum", [schema.get("const")])
    return isinstance(values, list) and any(isinstance(value, dict) for value in values)


def _together(schema: _Schema) -> Iterator[_Schema]:
    """Yield a schema and all that describe the same value."""
    yield schema
    for each in _beside(schema):
        yield from _together(each)


def _beside(schema: _Schema) -> list[_Schema]:
    """Return the schemas inside a schema that describe the same value."""
    found: list[JsonValue] = [schema.get(name) for name in _SCHEMAS]
    for name in _LISTS:
        found += value if isinstance(value := schema.get(name), list) else []
    for name in _BY_NAME:
        found += value.values() if isinstance(value := schema.get(name), dict) else []
    return [each for each in found if isinstance(each, dict)]


def _inside(schema: _Schema) -> Iterator[JsonValue]:
    """Yield the schemas inside a schema that describe other values."""
    for name in _NAMED:
        if isinstance(value := schema.get(name), dict):
            yield from value.values()
    yield from (value for name, value in schema.items() if name not in _LEFT)
