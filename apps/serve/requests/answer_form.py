"""Reads what an answer has to follow: OpenAI's `response_format`, and how clients of other servers spell the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

from edgedecode import InputError
from edgedecode.duplicate_names import unique_keys
from edgedecode.structured.grammar import Grammar
from edgedecode.structured.guidance import check_rules
from edgedecode.structured.loosening import OPEN, nearest
from edgedecode.typed_json import JsonValue

from .sampling import SamplingBody

_Schema: TypeAlias = dict[str, Any] | bool | str
_Given = TypeVar("_Given")
_Choices = Annotated[list[str], Meta(min_length=1, max_length=1000)]
_BESIDE_SCHEMA = {"name", "description", "strict"}
"""What OpenAI's `json_schema` has besides `schema`; anything else in it is a schema's own keyword."""


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer follows. schema: as JSON Schema, if it is one. notes: what of it is not followed."""

    grammar: Grammar
    schema: dict[str, JsonValue] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_schema(cls, schema: JsonValue, place: str, *, strict: bool = False) -> "Form":
        """Return the form of a JSON Schema, the nearest one that can be followed. Raises InputError.

        strict: refuse a schema that cannot be followed as it is.
        """
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise InputError(f"{place} is no JSON Schema, which is an object")
        near = nearest(schema, path=place)
        if strict and near.changes:
            raise InputError(f"{near.changes[0]} (strict is set)")
        return cls(Grammar.of_schema(near.schema), near.schema, tuple(map(str, near.changes)))


class FormatBody(Struct, frozen=True):
    """The field `response_format`, or `text.format` of responses. schema: allowed with `json_object` too (llama.cpp).

    json_schema: OpenAI's object with a `schema`, or the schema itself. pattern: a regular expression. grammar: Lark's
    or llama.cpp's syntax.
    """

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"] = "text"
    json_schema: dict[str, Any] | bool | None = None
    schema: _Schema | None = None
    pattern: str | None = None
    grammar: str | None = None
    strict: Annotated[bool, Meta(description="Refuse a schema that cannot be followed exactly.")] | None = None


class _Structured(Struct, frozen=True):
    """vLLM's field `structured_outputs`."""

    json: _Schema | None = None
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Annotated[None, Meta(description="Not offered.")] = None
    whitespace_pattern: Annotated[None, Meta(description="Not offered.")] = None


class FormBody(SamplingBody, frozen=True, kw_only=True):
    """The fields of a body that choose the next token, and say what its answer follows: at most one of the latter."""

    response_format: FormatBody | None = None
    json_schema: _Schema | None = None
    grammar: Annotated[str, Meta(description="In Lark's syntax, or llama.cpp's (GBNF).")] | None = None
    guided_json: _Schema | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: _Structured | None = None


_JSON_OBJECT = Form(Grammar.json_object(), OPEN)


def read_form(body: FormBody) -> Form | None:
    """Return what the answer has to follow; None: nothing. Raises InputError, also for several that differ."""
    structured = body.structured_outputs or _Structured()
    asked = {
        "response_format": None if body.response_format is None else read_format(body.response_format),
        "json_schema": _of_schema(body.json_schema, "json_schema"),
        "grammar": _of("grammar", Grammar.of_rules, body.grammar),
        "guided_json": _of_schema(body.guided_json, "guided_json"),
        "guided_regex": _of("guided_regex", Grammar.of_regex, body.guided_regex),
        "guided_choice": _of("guided_choice", Grammar.of_choices, body.guided_choice),
        "guided_grammar": _of("guided_grammar", Grammar.of_rules, body.guided_grammar),
        "structured_outputs.json": _of_schema(structured.json, "structured_outputs.json"),
        "structured_outputs.regex": _of("structured_outputs.regex", Grammar.of_regex, structured.regex),
        "structured_outputs.choice": _of("structured_outputs.choice", Grammar.of_choices, structured.choice),
        "structured_outputs.grammar": _of("structured_outputs.grammar", Grammar.of_rules, structured.grammar),
        "structured_outputs.json_object": _JSON_OBJECT if structured.json_object else None,
    }
    found = {name: form for name, form in asked.items() if form is not None}
    if len({form.grammar for form in found.values()}) > 1:
        raise InputError(f"{' and '.join(found)} exclude each other: give one of them")
    return next(iter(found.values()), None)


def read_format(form: FormatBody, field: str = "response_format") -> Form | None:
    """Return what the field `response_format`, or another of this name, asks for. Raises InputError."""
    match form.type:
        case "text":
            return None
        case "json_object" | "json_schema":
            schemas = [each for each in (form.schema, _inner(form.json_schema)) if each is not None]
            if len(schemas) > 1 and schemas[0] != schemas[1]:
                raise InputError(f"{field}.schema and {field}.json_schema differ: give one of them")
            if schemas:
                inside, place = form.json_schema, f"{field}.schema"
                strict = form.strict or (isinstance(inside, dict) and inside.get("strict") is True)
                if form.schema is None and isinstance(inside, dict):
                    place = f"{field}.json_schema{'.schema' if 'schema' in inside else ''}"
                return _of_schema(schemas[0], place, strict=strict)
            if form.type == "json_object":
                return _JSON_OBJECT
            raise InputError(f"{field}.schema is missing: give it there, or as json_schema.schema")
        case "regex" if form.pattern:
            return _of(f"{field}.pattern", Grammar.of_regex, form.pattern)
        case "grammar" if form.grammar:
            return _of(f"{field}.grammar", Grammar.of_rules, form.grammar)
    raise InputError(f"{field}.{'pattern' if form.type == 'regex' else 'grammar'} is missing")


def _inner(given: dict[str, Any] | bool | None) -> _Schema | None:
    """Return the schema in OpenAI's `json_schema`, which some clients give without the object around it."""
    if not isinstance(given, dict) or "schema" in given:
        return given["schema"] if isinstance(given, dict) else given
    return given if given.keys() - _BESIDE_SCHEMA else None


def _of_schema(given: _Schema | None, name: str, *, strict: bool = False) -> Form | None:
    schema: JsonValue = given
    if isinstance(given, str):
        try:
            schema = json.loads(given, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name} is not JSON: {' '.join(str(error).split())[:200]}") from None
    return None if schema is None else Form.of_schema(schema, name, strict=strict)


def _of(name: str, grammar: Callable[[_Given], Grammar], given: _Given | None) -> Form | None:
    """Return the form of a grammar that is no schema. Raises InputError with the field's name if it is wrong."""
    if not given:
        return None
    try:
        found = grammar(given)
        check_rules(found)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return Form(found)
