"""Optional properties come in the order in which the model writes them: values, not validity alone."""

import json
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.structured import schema_check
from edgedecode.structured.grammar import Grammar
from edgedecode.testing import byte_tokenizer
from edgedecode.text.tokenizer import Tokenizer
from tests.shared_paths import SHARED

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

from edgedecode.structured.guidance import GrammarTokens, schema_fault
from edgedecode.structured.matching import GuidanceConstraint

ASKED = "Extract name, age, city as JSON.\nMy name is Clara Reed. I am a singer from Paris and I am 71."
SAID = {"name": "Clara Reed", "age": 71, "city": "Paris"}
ONE, TEXT = {"type": "integer"}, {"type": "string"}
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


@pytest.mark.parametrize("required", [(), ("age",)])
@pytest.mark.parametrize("bounds", [(0, None), (1, None), (0, 1), (1, 1), (1, 3), (2, None), (2, 2), (0, 2), (0, 0)])
def test_objects_have_as_many_properties_as_their_schema_says(
    bounds: tuple[int, int | None], required: tuple[str, ...], pair: Pair, grammars: GrammarTokens
) -> None:
    """Some lower bounds are refused; of none an object has too few or too many."""
    least, most = bounds
    limits = {"minProperties": least} if most is None else {"minProperties": least, "maxProperties": most}
    schema = {**of(tuple(TYPES), *required), **limits}
    values = [{name: SAID[name] for name in names[:count]} for names in permutations(TYPES) for count in range(4)]
    refused = least > 1 + len(required) or (most is not None and most < len(required))
    assert (schema_fault(schema) is not None) == refused
    if refused:
        with pytest.raises(edgedecode.InputError):
            grammars.constraint(Grammar.of_schema(schema))
        return
    taken = [value for value in values if takes(grammars, schema, json.dumps(value), pair)]
    fits = [each for each in values if least <= len(each) <= (3 if most is None else most) and {*required} <= {*each}]
    assert {tuple(each) for each in taken} == {tuple(each) for each in fits}


def test_optional_properties_leave_room_for_required_ones(pair: Pair, grammars: GrammarTokens) -> None:
    """With no room left for a required property, no token would follow."""
    schema = {**of(tuple(TYPES), "age"), "maxProperties": 2}
    begun, second = '{"name": "A"', ', "city": "B"'
    constraint = grammars.constraint(Grammar.of_schema(schema))
    assert constraint.allows(pair.tokenizer.encode(begun)) == len(pair.tokenizer.encode(begun))
    assert constraint.allows(pair.tokenizer.encode(begun + second)) < len(pair.tokenizer.encode(begun + second))
    assert takes(grammars, schema, begun + ', "age": 1}', pair)


POINT = {"type": "array", "prefixItems": [ONE, ONE], "minItems": 2}
FLAT, NODES = of(("name", "age"), "name", "age"), {"type": "array", "items": {"$ref": "#/$defs/n"}}
TREE = {**NODES, "$defs": {"n": {"type": "object", "properties": {"n": NODES, "age": ONE}}}}
LINKS = {f"{n}": {"allOf": [{"$ref": f"#/$defs/{n + 1}"}]} if n < 600 else ONE for n in range(601)}


@pytest.mark.parametrize(
    ("schema", "value", "levels"),
    [
        (POINT, [1, 2], 1),
        (FLAT, {"name": "A", "age": 1}, 1),
        (
            {"type": "object", "properties": {"it": {"type": "array", "items": FLAT}}},
            {"it": [{"name": "A", "age": 1}]},
            3,
        ),
        (TREE, [{"n": [{"age": 1}], "age": 2}], 6),
        ({"type": "object"}, {"a": {"b": [[]]}}, 6),
        ({"type": "array", "items": {"$ref": "#/$defs/0"}, "$defs": LINKS}, [1], 6),
    ],
)
def test_an_indent_is_no_deeper_than_the_schema(
    schema: dict[str, Any], value: Any, levels: int, pair: Pair, grammars: GrammarTokens
) -> None:
    """A small model would go on with white space up to the bound."""
    for indent in (1, 2, 4, "\t"):
        assert takes(grammars, schema, json.dumps(value, indent=indent), pair)
    compact = json.dumps(value, separators=(",", ":"))
    for spaces, fits in ((4 * levels, True), (4 * levels + 1, False)):
        text = f"{compact[0]}\n{' ' * spaces}{compact[1:]}"
        assert takes(grammars, schema, text, pair) == fits, text


def test_several_patterns_of_a_text_are_all_followed(pair: Pair, grammars: GrammarTokens) -> None:
    schema = {"type": "string", "pattern": "^a", "allOf": [{"pattern": "b$"}, {"pattern": "[0-9]{2}", "maxLength": 5}]}
    assert takes(grammars, schema, '"a12b"', pair)
    for wrong in ('"a12"', '"12b"', '"ab"', '"a1b"', '"a1234b"'):
        assert not takes(grammars, schema, wrong, pair)


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


LOOP = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}}
NODE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
ENDLESS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    LOOP,
    {"$defs": {"a": NODE}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"anyOf": [NODE, {"$ref": "#/$defs/a"}]}}, "type": "array", "items": {"$ref": "#/$defs/a"}},
    {"$defs": {"a": {"type": "array", "items": {"allOf": [NODE]}, "minItems": 1}}, "$ref": "#/$defs/a"},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_that_requires_itself_is_refused_in_words(schema: dict[str, Any], grammars: GrammarTokens) -> None:
    with pytest.raises(edgedecode.InputError, match="contains itself, so that no answer ends"):
        grammars.constraint(Grammar.of_schema(schema))
    assert "contains itself" in (schema_fault(schema) or "")


def test_a_schema_that_may_end_inside_of_itself_is_followed(pair: Pair, grammars: GrammarTokens) -> None:
    node = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, ONE]}}, "required": ["a"]}
    assert takes(grammars, {"$defs": {"a": node}, "$ref": "#/$defs/a"}, '{"a": {"a": 1}}', pair)


def test_references_are_followed_once_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order, reading all of them again and again would settle two each time."""
    schemas: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}]} for n in range(1, 200)}
    names = [*(f"d{n}" for n in range(199, 0, -2)), "d0", *(f"d{n}" for n in range(2, 200, 2))]
    schemas = {name: schemas.get(name, ONE) for name in names}
    visits, ends = [0], schema_check._ends

    def counted(schema: Any, endless: Any) -> bool:
        visits[0] += 1
        return ends(schema, endless)

    monkeypatch.setattr(schema_check, "_ends", counted)
    schema_check.checked_schema(json.dumps({"$defs": schemas, "$ref": "#/$defs/d199"}))
    assert 200 < visits[0] < 2000


def test_a_special_token_by_its_name_is_refused_in_words(grammars: GrammarTokens) -> None:
    with pytest.raises(edgedecode.InputError, match="it names a special token, which is no text"):
        grammars.constraint(Grammar.of_rules('start: "a" <|im_end|>'))


@pytest.mark.parametrize("folder", [SHARED / "tokenizers" / "phi3", SHARED / "tokenizers" / "smollm2", BUNDLED_PACK])
def test_a_schemas_own_text_may_spell_special_tokens(folder: Path) -> None:
    """A special token in its place would end the answer in the middle, or fail."""
    if not (folder / "tokenizer.json").is_file():
        pytest.skip("the tokenizer is not here")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    mute = {token for token in tokenizer.added_ids if not tokenizer.token_bytes(token)}
    ends = mute | ({token} if (token := tokenizer.token_to_id("</s>")) in tokenizer.added_ids else set())
    constraints = GrammarTokens(tokenizer, rows=tokenizer.size, ends=ends)
    for text in [tokenizer.token_text(token) for token in sorted(ends)[:4]]:
        schema = {"type": "object", "properties": {text: {"const": f"a{text}b"}}, "required": [text]}
        constraint, written = constraints.constraint(Grammar.of_schema(schema)), list[int]()
        while not ends & {*constraint.allowed().tolist()}:
            written += constraint.forced()[:1] or constraint.allowed()[:1].tolist()
            constraint.extend(written[-1:])
        assert json.loads(tokenizer.decode(written)) == {text: f"a{text}b"}
        assert not ends & {*written}


def test_a_tokenizer_without_special_tokens_follows_schemas() -> None:
    inner = byte_tokenizer()._inner.to_str()
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps({**json.loads(inner), "added_tokens": []})))
    assert not tokenizer.special_ids | tokenizer.added_ids
    constraint = GrammarTokens(tokenizer, rows=tokenizer.size, ends=[1]).constraint(Grammar.of_schema({"const": "a"}))
    assert tokenizer.decode(constraint.forced()) == '"a"'


NAMED, AGED = of(("name",), "name"), of(("age", "city"), "age")
OPEN = {**of(("name", "age"), "name"), "additionalProperties": True}
PATTERN = {**of(("name",), "name"), "patternProperties": {"^x_": {"type": "integer"}}}
PLACES = {"type": "array", "prefixItems": [ONE, TEXT]}
WHOLE: list[tuple[dict[str, Any], Any]] = [
    ({"allOf": [NAMED, AGED]}, {"name": "A", "age": 1, "city": "B"}),
    ({"allOf": [{"$ref": "#/properties/it/$defs/a"}, AGED], "$defs": {"a": NAMED}}, {"name": "A", "age": 1}),
    ({**NAMED, "allOf": [{"properties": {"age": {"minimum": 3}}}, AGED]}, {"name": "A", "age": 3}),
    ({"const": {"a": 1, "b": [True, {}, []]}}, {"a": 1, "b": [True, {}, []]}),
    ({"enum": [{"a": 1}, {"a": None}, "x", 10, 1]}, {"a": None}),
    ({"type": "array", "items": {"const": [1, "b"]}}, [[1, "b"], [1, "b"]]),
    (OPEN, {"x": [1], "name": "A", "age": 1, "y": {"z": 2}}),
    (PATTERN, {"x_a": 1, "name": "A", "x_b": 2}),
    ({"type": "object", "patternProperties": {"^x_": ONE}, "additionalProperties": False}, {"x_a": 1, "x_b": 2}),
    ({"properties": {"a": ONE}, "required": ["a"]}, {"a": 1}),
    ({**PLACES, "items": True}, [1, "a", {"b": 2}, None]),
    ({"type": "array", "items": [ONE, TEXT], "additionalItems": TEXT, "minItems": 1}, [1, "a", "b"]),
    ({"type": "array", "items": ONE, "maxItems": 1}, [1]),
]


@pytest.mark.parametrize(("schema", "value"), WHOLE, ids=[str(number) for number in range(len(WHOLE))])
def test_there_is_no_gap_in_front_of_separators(
    schema: dict[str, Any], value: Any, pair: Pair, grammars: GrammarTokens
) -> None:
    """In each, llguidance alone would allow one."""
    schema = {"type": "object", "properties": {"it": schema}, "required": ["it"]}
    value = {"it": value}
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, separators=(",", ":"))):
        assert takes(grammars, schema, text, pair), text
        for place in (place for place, letter in enumerate(text) if letter in ",:"):
            for gap in (" ", "\n  "):
                assert not takes(grammars, schema, text[:place] + gap + text[place:], pair), text


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        ({"allOf": [{**NAMED, "required": []}, AGED]}, {"city": "B", "age": 1, "name": "A"}, {"age": 1, "job": "C"}),
        ({"allOf": [AGED, {**of(("city",), "city"), "additionalProperties": False}]}, None, {"age": 1, "city": "B"}),
        ({"allOf": [of(("age",)), {"properties": {"age": {"minimum": 5}}}]}, {"age": 5}, {"age": 4}),
        (OPEN, {"x": 1, "age": 1, "name": "A"}, {"x": 1, "name": 2}),
        (PATTERN, {"x_a": 1, "x_b": 2, "name": "A"}, {"name": "A", "x_a": "b"}),
        (PLACES, [1], [1, "a", 2]),
        ({**PLACES, "minItems": 2, "maxItems": 3}, [1, "a"], [1]),
        ({"type": "array", "items": [ONE], "prefixItems": [ONE], "additionalItems": TEXT}, [1, "a"], [1, 2]),
        ({"enum": [{"a": 1}, [2]], "type": "object"}, None, [2]),
        ({"properties": {"a": ONE}}, ["a"], {"a": "b"}),
    ],
)
def test_what_is_described_together_is_followed_in_any_order(
    schema: dict[str, Any], value: Any, wrong: Any, pair: Pair, grammars: GrammarTokens
) -> None:
    try:
        assert value is None or takes(grammars, schema, json.dumps(value), pair)
        assert not takes(grammars, schema, json.dumps(wrong), pair)
    except edgedecode.InputError:
        assert value is None


def test_a_whole_number_is_offered_as_the_schema_writes_it_and_without_its_fraction(
    pair: Pair, grammars: GrammarTokens
) -> None:
    for schema in ({"const": 1.0}, {"enum": [1.0, 2.5, "x"]}, {"const": 1.0, "type": "integer"}):
        assert all(takes(grammars, schema, text, pair) for text in ("1.0", "1"))
        assert not any(takes(grammars, schema, text, pair) for text in ("1.00", "10", "1."))
    assert takes(grammars, {"enum": [1.0, 2.5, "x"]}, "2.5", pair)
    within = {"type": "object", "properties": {"a": {"const": -3.0}, "b": {"const": 10}}, "required": ["a", "b"]}
    for text in ('{"a": -3.0, "b": 10}', '{"a": -3, "b": 10}', '{"a":-3,"b":10}'):
        assert takes(grammars, within, text, pair)


@pytest.mark.parametrize("kind", ["integer", "number", ["integer", "null"], None])
def test_a_number_has_as_many_digits_as_64_bits_at_most(kind: Any, pair: Pair, grammars: GrammarTokens) -> None:
    """Small models go on with zeros."""
    schema = {"type": "array", "items": {} if kind is None else {"type": kind}}
    for text in ("[-9223372036854775808, 18446744073709551615]", "[0]", "[7,-12]"):
        assert takes(grammars, schema, text, pair)
    for text in ("[612000000000000000000]", "[01]", "[1.]", "[-]"):
        assert not takes(grammars, schema, text, pair)
    for text in ("[0.5, -2.25e-7]", "[1E9]"):
        assert takes(grammars, schema, text, pair) == (kind in ("number", None))
