"""Objects have no properties but those that a schema lists, in one place or in several that describe one object."""

from copy import deepcopy
from typing import Any

import pytest

from edgedecode.structured.closing import closed

jsonschema = pytest.importorskip("jsonschema", reason="the test extra is not installed")

Schema = dict[str, Any]
A: Schema = {"properties": {"a": {"type": "integer"}}}
B: Schema = {"properties": {"b": {"type": "integer"}}}
DEFINED: Schema = {"$defs": {"A": A, "B": B}}
REF_A: Schema = {"$ref": "#/$defs/A"}
REF_B: Schema = {"$ref": "#/$defs/B"}
BOTH, ONLY_A, STRANGE = {"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}
CLOSED: dict[str, tuple[Schema, object, object]] = {
    "alone": (A, ONLY_A, BOTH),
    "without names": ({"properties": {}}, {}, ONLY_A),
    "a required name that is not listed": ({**A, "required": ["b"]}, BOTH, STRANGE),
    "in a list": ({"items": A}, [ONLY_A], [BOTH]),
    "a list of places": ({"prefixItems": [A, True]}, [ONLY_A, 1], [ONLY_A, 1, 2]),
    "in a property": ({"properties": {"x": A}}, {"x": ONLY_A}, {"x": BOTH}),
    "by a reference": ({**DEFINED, "properties": {"x": REF_A}}, {"x": ONLY_A}, {"x": BOTH}),
    "a described reference": (
        {**DEFINED, "properties": {"x": {"allOf": [REF_A], "description": "x"}}},
        {"x": ONLY_A},
        {"x": BOTH},
    ),
    "a union": ({"anyOf": [A, B]}, ONLY_A, BOTH),
    "an optional object": ({**DEFINED, "items": {"anyOf": [REF_A, {"type": "null"}]}}, [ONLY_A, None], [BOTH]),
    "all of two": ({"allOf": [A, B]}, BOTH, STRANGE),
    "all of two references": ({**DEFINED, "allOf": [REF_A, REF_B]}, BOTH, STRANGE),
    "a reference and properties": ({**DEFINED, **REF_A, **B}, BOTH, STRANGE),
    "properties and a union": ({**A, "anyOf": [{"required": ["a"]}, B]}, BOTH, STRANGE),
    "then and else": ({**A, "if": {"required": ["a"]}, "then": B, "else": {}}, BOTH, STRANGE),
    "by another's name": ({**A, "dependentSchemas": {"a": B}}, BOTH, STRANGE),
    "with patterns": ({**A, "patternProperties": {"^b": True}}, BOTH, STRANGE),
    "patterns of another": ({"allOf": [A, {"patternProperties": {"^b": True}}]}, BOTH, STRANGE),
    "a part that is used alone as well": (
        {**DEFINED, "properties": {"one": REF_A, "two": {"allOf": [REF_A, REF_B]}}},
        {"one": ONLY_A, "two": BOTH},
        {"one": BOTH},
    ),
    "inside of a joined one": (
        {"$defs": {"A": {"properties": {"x": A}}}, "allOf": [REF_A, B]},
        {"x": ONLY_A, "b": 1},
        {"x": BOTH, "b": 1},
    ),
    "a property called properties": (
        {"properties": {"properties": A, "enum": A}},
        {"properties": ONLY_A, "enum": ONLY_A},
        {"enum": BOTH},
    ),
    "a tree": (
        {"properties": {"a": True, "next": {"$ref": "#"}}},
        {"next": {"next": ONLY_A}},
        {"next": {"next": BOTH}},
    ),
}
OPEN: dict[str, Schema] = {
    "no properties": {"type": "object"},
    "only patterns": {"patternProperties": {"^a": True}},
    "said to be open": {**A, "additionalProperties": True},
    "others of a kind": {**A, "additionalProperties": {"type": "integer"}},
    "one of two said to be open": {**DEFINED, "allOf": [REF_A, {**B, "additionalProperties": True}]},
    "names of a kind": {**A, "propertyNames": {"maxLength": 3}},
    "more than are listed": {**A, "minProperties": 2},
    "a negation": {"not": {"properties": {"c": {"type": "string"}}, "required": ["c"]}},
    "a whole value": {**A, "enum": [STRANGE]},
}


@pytest.mark.parametrize("name", CLOSED)
def test_an_object_has_the_properties_that_are_listed(name: str) -> None:
    given, valid, other = CLOSED[name]
    before = deepcopy(given)
    schema = closed(given)
    assert given == before
    assert jsonschema.Draft202012Validator(given).is_valid(other)
    assert jsonschema.Draft202012Validator(schema).is_valid(valid)
    assert not jsonschema.Draft202012Validator(schema).is_valid(other)


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [A], "items": True},
        {"prefixItems": [A], "minItems": 2},
        {"allOf": [{"prefixItems": [A]}], "items": {"minimum": 0}},
        {"allOf": [{"prefixItems": [A]}, {"prefixItems": [A, True]}]},
    ],
)
def test_a_list_stays_open(schema: Schema) -> None:
    assert jsonschema.Draft202012Validator(closed(schema)).is_valid([ONLY_A, 1])


@pytest.mark.parametrize("name", OPEN)
def test_an_object_stays_open(name: str) -> None:
    assert jsonschema.Draft202012Validator(closed(OPEN[name])).is_valid(STRANGE)


def test_a_schema_that_leads_to_itself_where_it_is_joined_is_left_as_it_is() -> None:
    schema = {"$defs": {"A": {**B, "allOf": [REF_A]}}, "properties": {"x": {**A, **REF_A}}}
    assert closed(schema) == schema
