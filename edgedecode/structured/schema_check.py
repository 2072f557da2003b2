"""JSON Schemas as llguidance follows them exactly; the others are refused with the reason.

llguidance refuses keywords that it does not implement. This module refuses what it accepts but follows loosely, found
with the JSON Schema test suite and random schemas, and what takes seconds or gigabytes to compile.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import lcm

from edgedecode.errors import InputError
from edgedecode.typed_json import JsonValue

from .grammar import is_text

_Schema = dict[str, JsonValue]

_DEPTH = 120
"""Most levels of JSON, of which a property takes two. llguidance reads 127."""
_SUBSCHEMAS, _PATTERNS = 2000, 100
"""Compiling takes the square of these: 0.3 s for as many properties, 0.05 s for as many patternProperties."""
_MULTIPLE = 10_000
"""Largest common multiple of all `multipleOf`: as many states, 0.03 s and 4 MB. Ten million take minutes and 5 GB."""
_DIGITS = 12
_EXACT = 1 << 53
"""llguidance holds numbers as floats, where larger integers are rounded."""
_EXACTLY = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
"""Keywords whose numbers have to be exact."""
_OPTIONS = 500
"""Most references in `oneOf` that are followed."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value has schemas by name."""
_VALUES = ("const", "enum", "required", "default", "example", "examples")
"""Keywords whose value has no schemas. A $ref may name one in any other."""
DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[4-7]/schema|draft/20(19-09|20-12)/schema)#?")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON writes as \\uXXXX, an escape that is turned off: a key written with it could repeat another."""


def checked_schema(text: str) -> _Schema:
    """Parse a JSON Schema and return it as llguidance has to read it. Raises InputError with the reason."""
    try:
        schema = json.loads(text, parse_constant=_no_number)
        whole_text = is_text(json.dumps(schema, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise _refusal(reason) from None
    if not whole_text:
        raise _refusal("it has half of a surrogate pair, which is no character")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _refusal("it is not an object")
    # Keywords that an older draft does not know would be ignored: every schema is read as one of 2020-12.
    if isinstance(draft := schema.get("$schema"), str) and DRAFTS.fullmatch(draft):
        del schema["$schema"]
    if "x-guidance" in schema:
        raise _refusal("x-guidance loosens what a schema says: leave it out")
    for each, _ in subschemas(schema):
        if each.get("uniqueItems") is False:  # which is the default, and says nothing
            del each["uniqueItems"]
        placed = dict(with_places(each))
        each.clear()
        each.update(placed)
    _check(schema)
    if (reference := _endless(schema)) is not None:
        raise _refusal(f"what {reference[:80]!r} requires contains itself, so that no answer ends: require less")
    if any("$id" in each for each, _ in subschemas(schema)):  # references are relative to it
        return schema
    whole = _Options(schema).followed(schema)
    assert isinstance(whole, dict)
    _check(whole)  # its size
    return whole


def fits(schema: _Schema) -> bool:
    """Return whether a schema that was followed before is still small enough."""
    try:
        _check(schema)
    except InputError:
        return False
    return True


def without(schema: _Schema, keywords: Sequence[str]) -> _Schema:
    """Return a copy of a schema in which no schema has these keywords."""
    copy: _Schema = json.loads(json.dumps(schema))
    for each, _ in subschemas(copy):
        for keyword in keywords:
            each.pop(keyword, None)
    return copy


def _check(root: _Schema) -> None:
    """Raise InputError for what llguidance follows loosely, and for what is too large."""
    count = patterns = 0
    multiples: list[Decimal] = []
    for schema, depth in subschemas(root):
        count += 1 + len(_mapping(schema.get("properties")))
        patterns += len(_mapping(schema.get("patternProperties")))
        if depth > _DEPTH:
            raise _refusal(f"it is nested more than {_DEPTH} levels deep")
        if count > _SUBSCHEMAS or patterns > _PATTERNS:
            raise _refusal(f"it has more than {_SUBSCHEMAS} schemas and properties, or {_PATTERNS} patternProperties")
        _check_keywords(schema)
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool):
            multiples.append(Decimal(str(multiple)).copy_abs())
    if multiples:
        _check_multiples(multiples)


def _check_keywords(schema: _Schema) -> None:
    for keyword in schema:
        if (fault := fault_of_keyword(keyword, schema)) is not None:
            raise _refusal(fault)


def fault_of_keyword(keyword: str, schema: _Schema) -> str | None:
    """Return why a keyword of a schema would not be followed exactly; None: it is, or llguidance refuses it itself."""
    value = schema[keyword]
    if keyword == "$schema":
        return "it has a $schema inside of it, or one of no known draft"
    if keyword == "prefixItems" and ("additionalItems" in schema or isinstance(schema.get("items"), list)):
        return "prefixItems has the older additionalItems, or another list of items, beside it: give one list"
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return f"{keyword} is a boolean, as in draft 4: give the number"
    if keyword == "required" and not isinstance(value, list):
        return "required is not a list of names"
    if keyword == "minProperties":
        required = schema.get("required")
        count = len({each for each in required if isinstance(each, str)}) if isinstance(required, list) else 0
        if isinstance(value, int) and value > count + 1:
            return f"minProperties {value} with {count} required: an answer could repeat a key to reach it"
    return _fault_of_values(value) if keyword in _EXACTLY else None


def _fault_of_values(given: JsonValue) -> str | None:
    for value in _leaves(given):
        if isinstance(value, int | float) and abs(value) >= _EXACT:
            return f"the number {value!r:.40} is beyond 2^53, where numbers are no longer exact"
        if isinstance(value, str) and (found := _CONTROL.search(value)):
            return f"the control character {found.group()!r} in const or enum cannot be written"
    return None


def _check_multiples(multiples: list[Decimal]) -> None:
    """Bound the automaton of `multipleOf`, which has a state for every remainder. Intersections take the multiple."""
    if not all(each.is_finite() for each in multiples):
        raise _refusal("its multipleOf is not a number")
    digits = max(0, *(-int(each.as_tuple().exponent) for each in multiples))
    largest = max(each.adjusted() for each in multiples)
    if digits + largest > _DIGITS or lcm(*(int(each.scaleb(digits)) for each in multiples)) > _MULTIPLE:
        raise _refusal(f"the common multiple of its multipleOf has more than {_MULTIPLE} steps")


def _endless(root: _Schema) -> str | None:
    """Return a reference to a schema that no finite value follows; None: there is none."""
    found = {target: None for each, _ in subschemas(root) if isinstance(target := each.get("$ref"), str)}
    endless: dict[str, JsonValue] = {each: root if each == "#" else named(each, root) for each in found}
    users: dict[str, set[str]] = {}
    for name, schema in endless.items():
        for each, _ in subschemas(schema) if isinstance(schema, dict) else ():
            if isinstance(target := each.get("$ref"), str):
                users.setdefault(target, set()).add(name)
    todo = [*endless]
    while todo:
        name = todo.pop()
        if name in endless and _ends(endless[name], endless):
            del endless[name]
            todo += users.get(name, ())
    return min(endless, default=None)


def _ends(schema: JsonValue, endless: Mapping[str, JsonValue]) -> bool:
    """Return whether a finite value follows a schema without these references."""
    if not isinstance(schema, dict):
        return True
    every, choices = _list(schema, "allOf"), [each for name in ("anyOf", "oneOf") if (each := _list(schema, name))]
    if schema.get("type") == "object":
        properties = _mapping(schema.get("properties"))
        every = [*every, *(properties.get(name) for name in _list(schema, "required") if isinstance(name, str))]
    if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int):
        places = _list(schema, "prefixItems")
        every = [*every, *places[:least], *([schema.get("items")] if least > len(places) else [])]
    refers = isinstance(target := schema.get("$ref"), str) and target in endless
    return (
        not refers
        and all(_ends(each, endless) for each in every)
        and all(any(_ends(each, endless) for each in options) for options in choices)
    )


class _Options:
    """Puts the schemas that the references in a `oneOf` name in their place.

    llguidance follows a `oneOf` whose options provably exclude each other, but does not look behind references, with
    which most tools write tagged unions.
    """

    def __init__(self, root: _Schema) -> None:
        self._root = root
        self._count = 0

    def followed(self, value: JsonValue, inside: tuple[str, ...] = ()) -> JsonValue:
        """Return a schema, or a list of some. inside: the references that led to it."""
        if isinstance(value, list):
            return [self.followed(each, inside) for each in value]
        if not isinstance(value, dict):
            return value
        result: _Schema = {}
        for keyword, inner in value.items():
            if keyword in _NAMED and isinstance(inner, dict):
                result[keyword] = {name: self.followed(each, inside) for name, each in inner.items()}
            elif keyword == "oneOf" and isinstance(inner, list):
                result[keyword] = [self._option(each, inside) for each in inner]
            else:
                result[keyword] = inner if keyword in _VALUES else self.followed(inner, inside)
        return result

    def _option(self, option: JsonValue, inside: tuple[str, ...]) -> JsonValue:
        """Return what an option names, if it is nothing but a reference to a schema that it is not a part of."""
        reference = option.get("$ref") if isinstance(option, dict) and len(option) == 1 else None
        if not isinstance(reference, str) or reference in inside:
            return self.followed(option, inside)
        found = named(reference, self._root)
        if found is None:
            return option
        self._count += 1
        if self._count > _OPTIONS:
            raise _refusal(f"its oneOf have more than {_OPTIONS} references")
        return self._option(found, (*inside, reference))


def with_places(schema: _Schema) -> _Schema:
    """Return a schema with the places of a list in `prefixItems`, where older drafts have them in `items`.

    Some schemas have both, for all readers. If they differ, they stay, and are refused.
    """
    places = schema.get("items")
    if not isinstance(places, list) or schema.get("prefixItems", places) != places:
        return schema
    left = {name: value for name, value in schema.items() if name not in ("items", "additionalItems")}
    rest = {"items": schema["additionalItems"]} if "additionalItems" in schema else {}
    return {**left, **({"prefixItems": places} if places else {}), **rest}


def named(reference: str, root: _Schema) -> _Schema | None:
    """Return the schema at a JSON pointer; None if there is none."""
    found: JsonValue = root if reference.startswith("#/") else None
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = _mapping(found).get(name)
    return found if isinstance(found, dict) else None


def subschemas(root: _Schema) -> Iterator[tuple[_Schema, int]]:
    """Yield a schema and those inside of it, with their depth. Unknown keywords may hold schemas that a $ref names."""
    todo: list[tuple[JsonValue, int]] = [(root, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, list):
            todo += [(each, depth + 1) for each in value]
        elif isinstance(value, dict):
            yield value, depth
            for keyword, inner in value.items():
                if keyword in _NAMED and isinstance(inner, dict):
                    todo += [(each, depth + 2) for each in inner.values()]
                elif keyword not in _VALUES:
                    todo.append((inner, depth + 1))


def _leaves(value: JsonValue) -> Iterator[JsonValue]:
    """Yield the numbers, texts and so on inside a value, without the names of objects."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, list):
            todo += each
        elif isinstance(each, dict):
            todo += each.values()
        else:
            yield each


def _list(schema: _Schema, keyword: str) -> list[JsonValue]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _refusal(reason: str) -> InputError:
    return InputError(f"the json_schema is not supported: {reason}")
