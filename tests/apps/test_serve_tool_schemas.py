"""`serve`: schemas of functions as tool servers publish them. None fails a request; what is left out is said."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, QUESTION, RESPONSES, USER, Running, body, offered

# isort: split
import jsonschema_rs
from msgspec import to_builtins

import edgedecode
from edgedecode.apps.serve.replies import tool_call
from edgedecode.apps.serve.requests.tools import arguments_fault
from edgedecode.structured.guidance import schema_fault
from edgedecode.structured.loosening import OPEN, nearest

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def of(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], **more}


FOLLOWED: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"properties": {"path": TEXT}},
    of({"path": TEXT, "head": NUMBER, "tail": NUMBER}, "path", additionalProperties=False, **{"$schema": DRAFT_7}),
    of({"edits": {"type": "array", "items": of({"oldText": TEXT, "newText": TEXT}, "oldText", "newText")}}, "edits"),
    of({"owner": TEXT, "perPage": {"type": "number", "minimum": 1, "maximum": 100, "description": "x"}}, "owner"),
    of({"state": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"}}),
    of({"labels": {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}], "default": None, "title": "Labels"}}),
    of({"value": {"type": ["string", "number", "boolean", "null"]}}),
    of({"url": {"type": "string", "format": "uri"}, "when": {"type": "string", "format": "date-time"}}, "url"),
    of({"id": {"type": "string", "pattern": "^[0-9a-f]{8}$"}}, "id"),
    of({"node": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": of({"next": {"$ref": "#/$defs/Node"}})}}),
    of({"node": {"$ref": "#/definitions/Node"}}, definitions={"Node": of({"name": TEXT}, "name")}),
    of({"filter": {"type": "object", "additionalProperties": {"type": "string"}}}),
    of({"timeout": {"type": "integer", "exclusiveMinimum": 0, "default": 30}}),
    of({"point": {"type": "array", "prefixItems": [NUMBER, NUMBER], "items": False}}),
    of({"a": {"type": "integer", "format": "int64"}}),
    of({"id": {"allOf": [{**TEXT, "pattern": "^a"}, {"pattern": "b$"}]}}),
    of({"a": TEXT, "b": {"$ref": "#/properties/a"}}, minProperties=1),
    of({"a": TEXT, "b": TEXT}, "a", maxProperties=2, additionalProperties=False),
    of({"a": TEXT, "b": TEXT, "c": TEXT}, maxProperties=2),
    of({"kind": {"const": "file"}}, "kind", **{"x-order": 3, "examples": [1]}),
]
LOOSENED: list[tuple[dict[str, Any], str]] = [
    (of({"tags": {"type": "array", "items": TEXT, "uniqueItems": True}}), ".properties.tags.uniqueItems"),
    (of({"a": TEXT}, propertyNames={"pattern": "^[a-z]+$"}), ".propertyNames"),
    (of({"a": {"not": {"type": "null"}}}), ".properties.a.not"),
    (of({"a": {"type": "array", "contains": TEXT, "minContains": 1}}), ".properties.a.contains"),
    (of({"a": TEXT, "b": TEXT}, **{"if": of({"a": TEXT}), "then": {"required": ["b"]}}), ".if"),
    (of({"a": TEXT, "b": TEXT}, dependentRequired={"a": ["b"]}), ".dependentRequired"),
    (of({"a": TEXT}, dependentSchemas={"a": of({"b": TEXT})}), ".dependentSchemas"),
    (of({"a": TEXT}, dependencies={"a": ["b"]}), ".dependencies"),
    (of({"a": {"type": "string", "format": "file-path"}}), ".properties.a.format"),
    (of({"a": {"type": "string", "pattern": "^(?!x).*$"}}), ".properties.a.pattern"),
    (of({"a": {"type": "string", "pattern": "("}}), ".properties.a.pattern"),
    (of({"a": {"type": "integer", "maximum": 9223372036854775807}}), ".properties.a.maximum"),
    (of({"a": {"type": "integer", "minimum": -9007199254740992}}), ".properties.a.minimum"),
    (of({"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}}), ".properties.a.exclusiveMinimum"),
    (of({"a": {"type": "any"}}), ".properties.a.type"),
    (of({"a": {"type": "file", "description": "upload"}}), ".properties.a.type"),
    (of({"a": {"type": "string", "required": True}}), ".properties.a.required"),
    (of({"a": {"enum": []}}, "a"), ".properties.a.enum"),
    (of({"a": {"$ref": "#/components/schemas/Pet"}}), ".properties.a.$ref"),
    (of({"a": {"$ref": "other.json#/x"}}), ".properties.a.$ref"),
    (of({"a": {"oneOf": [TEXT, {"type": "string", "maxLength": 3}]}}), "oneOf"),
    (of({"a": {"oneOf": [of({"k": TEXT}), of({"l": TEXT})]}}), "oneOf"),
    (of({}, minProperties=2), ".minProperties"),
    (of({"a": TEXT, "b": TEXT, "c": TEXT}, maxProperties=2, additionalProperties=True), ".maxProperties"),
    (of({"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": of({"a": {"$ref": "#/$defs/a"}}, "a")}}), "'#/$defs/a'"),
    (of({"a": TEXT, "b": NUMBER}, "a", "b", maxProperties=1), ".maxProperties"),
    (of({"a": {"type": "object", "patternProperties": {"^(?=x)": TEXT}}}), ".properties.a.patternProperties"),
    (of({"a": {"type": "string", "const": "a\u0000b"}}), ".properties.a.const"),
    (of({"a": {"const": 2**60}}), ".properties.a.const"),
    (of({"a": {"type": "number", "multipleOf": 1e-13}}), "multipleOf"),
    (of({"a": {"allOf": [TEXT, {"type": "integer"}]}}, "a"), "allOf"),
    (of({"a": TEXT}, unevaluatedProperties=False), ".unevaluatedProperties"),
    (of({"a": {"type": "array", "items": [TEXT], "additionalItems": False, "uniqueItems": True}}), ".uniqueItems"),
    (of({"a": {"type": "string", "minLength": "3"}}), ".properties.a.minLength"),
    (of({"a": {"type": "array", "items": "string"}}), ".properties.a.items"),
    (of({"a": {"type": "number", "minimum": 3, "maximum": 1}}, "a"), ""),
    ({"type": "object", "properties": ["a", "b"]}, ".properties"),
    (of({"a": {"$dynamicRef": "#x"}}), ".properties.a.$dynamicRef"),
]
DEEP: dict[str, Any] = TEXT
for _ in range(80):
    DEEP = of({"a": DEEP})


def tool(parameters: dict[str, Any], name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def ask(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return body(CHAT, QUESTION, 4, tools=[*tools], **more)


@pytest.mark.parametrize("schema", FOLLOWED, ids=str)
def test_schemas_that_are_followed_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert offered([tool(schema, strict=True)], "required").changes == ()


@pytest.mark.parametrize(("schema", "place"), LOOSENED, ids=lambda each: str(each)[:60])
def test_what_cannot_be_followed_is_left_out_and_named(schema: dict[str, Any], place: str) -> None:
    found = nearest(schema)
    assert found.changes
    assert place in found.changes[0].path + found.changes[0].reason
    assert schema_fault(found.schema) is None
    with pytest.raises(edgedecode.InputError, match=r"^tools\[0\]\.function\.parameters.*strict"):
        offered([tool(schema, strict=True)])


@pytest.mark.parametrize(
    ("part", "fits", "fails"),
    [
        ({"type": "string", "nullable": True}, ["x", None], [1]),
        ({"type": "string", "nullable": True, "enum": ["x"]}, ["x", None], ["y"]),
        ({"type": ["STRING", "INTEGER"], "nullable": True}, ["x", 1, None], [True]),
        ({"type": "ARRAY", "items": {"type": "INTEGER", "nullable": True}}, [[1, None]], [None, ["x"]]),
        ({"$ref": "#/$defs/name", "nullable": True}, ["x", None], [1]),
        ({"nullable": {"type": "string"}}, [1, None], []),
        ({"type": "object", "properties": []}, [{}], [1]),
    ],
)
def test_spellings_of_openapi_and_gemini_mean_what_they_mean_there(
    part: dict[str, Any], fits: list[object], fails: list[object]
) -> None:
    given = {**of({"a": part, "nullable": {"type": "BOOLEAN"}}), "$defs": {"name": {"type": "STRING"}}}
    found = nearest(given)
    assert not found.changes
    valid = jsonschema_rs.validator_for(found.schema)
    assert all(valid.is_valid({"a": each, "nullable": True}) for each in fits)
    assert not any(valid.is_valid({"a": each}) for each in fails)


TOOL = of({"name": {"type": "string"}, "size": {"type": "integer"}})
MANY = [TOOL] * 1000


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"anyOf": MANY}, {"type": "object"}),
        ({"type": "array", "items": {"oneOf": MANY}}, {"type": "array", "items": {"type": "object"}}),
        (
            {**of({"a": {"$ref": "#/$defs/b"}, "c": {"anyOf": [*MANY, True]}}), "$defs": {"b": TOOL}},
            of({"a": {"type": "object"}, "c": {}}),
        ),
    ],
    ids=["options", "items", "references"],
)
def test_options_that_are_too_many_leave_the_type_that_they_share(
    schema: dict[str, Any], wanted: dict[str, Any]
) -> None:
    found = nearest(schema)
    assert found.changes
    assert {**found.schema, **wanted} == found.schema


def test_a_looser_schema_allows_what_the_given_one_allows() -> None:
    values: list[Any] = [
        {"a": each}
        for each in ("x", "a\u0000b", 1, 2, 2**60, 2**53, None, ["x"], [1, 2], {"k": "x"}, {"l": "x"}, {}, "abcd")
    ]
    values += [{}, {"tags": ["a", "b"]}, {"a": "x", "b": "y"}, {"b": "y"}]
    checked = 0
    for schema, _ in LOOSENED:
        try:
            given = jsonschema_rs.validator_for(schema)
        except ValueError:  # it is no schema
            continue
        loose = jsonschema_rs.validator_for(nearest(schema).schema)
        fits = [value for value in values if given.is_valid(value) and {*value} <= {*schema["properties"]}]
        assert all(loose.is_valid(value) for value in fits), schema
        checked += len(fits)
    assert checked > 60


def test_an_odd_schema_fails_neither_its_own_nor_another_function(server: Running) -> None:
    before = server.count("edgedecode_notes_total")
    tools = [tool(schema, f"f{number}") for number, schema in enumerate([*FOLLOWED, *(each for each, _ in LOOSENED)])]
    tools += [tool(of({f"p{number}": TEXT}), f"g{number}") for number in range(4)]
    for each in tools:
        server.answer(ask(each, tool_choice="required"))
        assert ("tools[0]" in server.note) == any(each["function"]["parameters"] is odd for odd, _ in LOOSENED), each
    assert server.count("edgedecode_notes_total") > before + len(LOOSENED)
    found = offered([*tools, tool(DEEP, "deep")], "required")
    assert schema_fault(json.loads(found.grammar.text)) is None
    assert {change.path.partition(".")[0] for change in found.changes} >= {
        f"tools[{len(FOLLOWED) + number}]" for number in range(len(LOOSENED))
    }


def test_functions_that_are_too_large_together_take_any_object() -> None:
    large = of({f"p{number}": {"type": "string", "enum": [f"v{number}"]} for number in range(300)})
    found = offered([tool(large, f"f{number}") for number in range(12)] + [tool(of({"a": TEXT}), "g")])
    assert schema_fault(json.loads(found.grammar.text)) is None
    opened = [each.name for each in found.functions if each.followed == OPEN]
    assert 0 < len(opened) < 12
    assert "g" not in opened


def test_arguments_are_checked_against_the_given_schema() -> None:
    schema = of({"tags": {"type": "array", "items": TEXT, "uniqueItems": True}}, "tags")
    tools = offered([tool(schema), tool(of({"a": TEXT}), "g")])
    (right,) = tools.calls('{"name": "f", "arguments": {"tags": ["a", "b"]}}')
    (wrong,) = tools.calls('{"name": "f", "arguments": {"tags": ["a", "a"]}}')
    assert right.fault is None
    assert wrong.fault.startswith("arguments.tags: ")
    assert to_builtins(tool_call(wrong))["schema_error"] == wrong.fault
    assert "schema_error" not in to_builtins(tool_call(right))


def test_a_refusal_names_the_function_the_place_and_the_keyword(server: Running) -> None:
    odd = of({"when": {"type": "string", "format": "moon-phase"}})
    error = server.refuses(ask(tool(of({"a": TEXT}), "g"), tool(odd, strict=True)), "moon-phase")
    assert error["param"] == "tools[1].function.parameters.properties.when.format"
    assert "'f'" in error["message"]
    place = "response_format.json_schema.schema.properties.when.format"
    strict, loose = ({"name": "x", "strict": strict, "schema": odd} for strict in (True, False))
    asks = {"messages": [USER], "max_tokens": 2}
    refused = asks | {"response_format": {"type": "json_schema", "json_schema": strict}}
    assert server.refuses(refused)["param"] == place
    server.answer(asks | {"response_format": {"type": "json_schema", "json_schema": loose}})
    assert server.note.startswith(place)


@pytest.mark.parametrize("kind", ["array", "string", ["integer", "null"]])
def test_a_function_is_given_an_object(server: Running, kind: Any) -> None:
    assert server.refuses(ask(tool({"type": kind})))["param"] == "tools[0].function.parameters.type"
    for schema in ({"type": ["object", "null"]}, {"type": "OBJECT"}, {"type": "odd"}):
        server.answer(ask(tool(schema)))


def test_a_body_of_responses_is_refused_by_its_own_names(server: Running) -> None:
    odd = {"type": "function", "name": "f", "strict": True, "parameters": of({"a": {"not": {}}})}
    error = server.refuses({"input": "hi", "tools": [{"type": "web_search"}, odd]}, path=RESPONSES)
    assert error["param"] == "tools[1].parameters.properties.a.not"


def test_references_to_files_and_other_machines_are_not_read() -> None:
    for uri in ("http://127.0.0.1:9/x", "file:///etc/passwd"):
        assert arguments_fault({"$ref": uri}, "{}") is None
        assert [change.path for change in nearest(of({"a": {"$ref": uri}})).changes] == [".properties.a.$ref"]
