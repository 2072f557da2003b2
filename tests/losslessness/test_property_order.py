"""Optional properties come in the order in which the model writes them: values, not validity alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.structured.grammar import Grammar

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

from edgedecode.structured.guidance import GrammarTokens, GuidanceConstraint

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
ASKED = "Extract name, age, city as JSON.\nMy name is Clara Reed. I am a singer from Paris and I am 71."
SAID = {"name": "Clara Reed", "age": 71, "city": "Paris"}
TYPES = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        yield pair


@pytest.fixture(scope="module")
def grammars(pair: Pair) -> GrammarTokens:
    return GrammarTokens(pair.tokenizer, rows=pair.tokenizer.size, ends=pair.manifest.end_ids)


def of(names: tuple[str, ...], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: TYPES[name] for name in names}, "required": [*required]}


def takes(grammars: GrammarTokens, schema: dict[str, Any], text: str, pair: Pair) -> bool:
    """Return whether a whole text follows a schema."""
    constraint: GuidanceConstraint = grammars.constraint(Grammar.of_schema(schema))
    tokens = [*pair.tokenizer.encode(text), min(pair.manifest.end_ids)]
    return constraint.allows(tokens[:-1]) == len(tokens) - 1 and _ends(constraint, tokens)


def _ends(constraint: GuidanceConstraint, tokens: list[int]) -> bool:
    constraint.extend(tokens[:-1])
    return tokens[-1] in constraint.allowed()


@pytest.mark.parametrize("names", [*permutations(TYPES)])
@pytest.mark.parametrize("drafter", [None, "none"])
def test_an_answer_keeps_the_models_own_order(pair: Pair, names: tuple[str, ...], drafter: str | None) -> None:
    options = SessionOptions(grammar=Grammar.of_schema(of(names)), sampling=SamplingOptions(), drafter=drafter)
    with pair.session(options) as session:
        assert session.generate(ASKED, max_tokens=60).text == json.dumps(SAID)


@pytest.mark.parametrize("names", [*permutations(TYPES)])
def test_every_order_of_optional_properties_is_taken(
    pair: Pair, grammars: GrammarTokens, names: tuple[str, ...]
) -> None:
    schema = of(tuple(TYPES))
    for count in range(4):
        value = {name: SAID[name] for name in names[:count]}
        for indent in (None, 2):
            assert takes(grammars, schema, json.dumps(value, indent=indent), pair), value


def test_no_property_comes_twice_and_required_ones_are_there(pair: Pair, grammars: GrammarTokens) -> None:
    schema = of(tuple(TYPES), "name")
    assert takes(grammars, schema, '{"age": 7, "name": "A"}', pair)
    assert takes(grammars, schema, '{"name": "A", "city": "B", "age": 7}', pair)
    for wrong in ('{"age": 7}', "{}", '{"name": "A", "name": "B"}', '{"age": 7, "name": "A", "age": 8}', '{"job": 1}'):
        assert not takes(grammars, schema, wrong, pair), wrong


def test_objects_inside_others_and_lists_are_free_too(pair: Pair, grammars: GrammarTokens) -> None:
    schema = {"type": "object", "properties": {"people": {"type": "array", "items": of(tuple(TYPES))}, "n": {}}}
    assert takes(grammars, schema, '{"n": 1, "people": [{"city": "B", "name": "A"}, {}, {"age": 1}]}', pair)
    assert not takes(grammars, schema, '{"people": [{"city": "B", "city": "C"}]}', pair)


def test_a_schema_that_refers_to_itself_is_free_too(pair: Pair, grammars: GrammarTokens) -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert takes(grammars, schema, '{"next": {"next": {"v": 1}, "v": 2}, "v": 3}', pair)


def test_many_properties_stay_compilable(pair: Pair, grammars: GrammarTokens) -> None:
    for count in (20, 60, 61, 200):
        schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(count)}}
        assert takes(grammars, schema, json.dumps({f"p{number}": number for number in range(count)}), pair)
        assert takes(grammars, schema, '{"p1": 1, "p0": 0}', pair) == (count <= 60)


EMPTY = {"type": "object", "properties": {}}
LISTS = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    "schema",
    [EMPTY, LISTS, {**LISTS, "maxItems": 0}, {"type": "array", "items": EMPTY}, of(("name",)), of(("name", "age"))],
)
def test_there_is_no_white_space_in_what_is_empty(schema: dict[str, Any], pair: Pair, grammars: GrammarTokens) -> None:
    empty = "[]" if schema["type"] == "array" else "{}"
    assert takes(grammars, schema, empty, pair)
    for inside in (" ", "\n", "\n  "):
        assert not takes(grammars, schema, empty[0] + inside + empty[1], pair)


def test_what_is_empty_may_be_inside_of_something(pair: Pair, grammars: GrammarTokens) -> None:
    schema = {"type": "object", "properties": {"none": EMPTY, "list": LISTS}, "required": ["none", "list"]}
    for value in ({"none": {}, "list": []}, {"none": {}, "list": [1, 2]}):
        for indent in (None, 2):
            assert takes(grammars, schema, json.dumps(value, indent=indent), pair)
    assert not takes(grammars, schema, '{"none": { }, "list": []}', pair)


def test_a_schema_that_requires_itself_is_refused_in_words(grammars: GrammarTokens) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    with pytest.raises(edgedecode.InputError, match="contains itself, so that no answer ends"):
        grammars.constraint(Grammar.of_schema(schema))
