"""JSON Schemas of the standard's test suite and as people write them: refused before decoding, or followed exactly."""

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode import InputError, Pair, SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.structured.grammar import Grammar, GrammarKind
from tests.shared_paths import SHARED

pytest.importorskip("llguidance", reason="the structured extra is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="the test extra is not installed")

SUITE = SHARED / "data" / "json-schema-tests" / "draft2020-12"
needs_suite = pytest.mark.skipif(not SUITE.is_dir(), reason="needs the JSON Schema test suite next to the project")
SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
FORMATS = jsonschema.FormatChecker(["email", "ipv4", "ipv6", "uuid"])
"""Those that jsonschema checks by itself and llguidance follows to the letter: its dates allow February 29th."""
UNCHECKED = ("\\p{", "^\\S$")
"""Patterns: jsonschema matches them with Python's `re`, without \\p; llguidance takes U+FEFF for no white space."""
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
LOOSE: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, '{"x":1,"x":2}'),
    ({"type": "object", "patternProperties": {"^x": INTEGER}, "minProperties": 2}, '{"x":1,"x":2}'),
    ({"type": "object", "properties": {"a": INTEGER}, "additionalProperties": TEXT}, '{"\\u0061":"x"}'),
    ({"type": "object", "properties": {"é": INTEGER}, "additionalProperties": TEXT}, '{"\\u00e9":"x"}'),
    ({"type": "object", "properties": {'a"b': INTEGER}, "additionalProperties": TEXT}, '{"a\\u0022b":"x"}'),
    ({"type": "object", "properties": {"a/b": INTEGER}, "additionalProperties": TEXT}, '{"a\\/b":"x"}'),
    ({"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": TEXT}, '{"\\u0061":"x"}'),
    ({"const": 9007199254740993}, "9007199254740992"),
    ({"enum": [[9007199254740993]]}, "[9007199254740992]"),
    ({"type": "integer", "minimum": 9007199254740993}, "9007199254740992"),
    ({"type": "integer", "exclusiveMinimum": 9007199254740992}, "9007199254740992"),
    ({"type": "integer", "exclusiveMinimum": 1e17}, "100000000000000000"),
    ({"type": "array", "prefixItems": [INTEGER], "additionalItems": False}, '["x"]'),
    ({"type": "array", "prefixItems": [INTEGER], "items": TEXT, "additionalItems": False}, '["x"]'),
    ({"type": "array", "prefixItems": [INTEGER], "items": [TEXT]}, '["x"]'),
    *(
        ({"$schema": f"http://json-schema.org/draft-0{draft}/schema#", **schema}, text)
        for draft in (4, 6, 7)
        for schema, text in (
            ({"type": "array", "prefixItems": [INTEGER]}, '["x"]'),
            ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
            ({"type": "object", "unevaluatedProperties": False}, '{"a":1}'),
            ({"type": "array", "contains": TEXT}, "[2]"),
            ({"type": "integer", "if": {"minimum": 5}, "then": {"minimum": 9}}, "6"),
            ({"const": 1}, "2"),
        )
    ),
    ({"type": "object", "properties": {"a": {"$schema": "http://json-schema.org/draft-04/schema#"}}}, '{"a":1}'),
    ({"x-guidance": {"lenient": True}, "type": "array", "contains": TEXT}, "[2]"),
    ({"x-guidance": {"coerce_one_of": True}, "oneOf": [INTEGER, {"minimum": 3}]}, "5"),
    ({"x-guidance": {"item_separator": ";"}, "type": "array", "items": INTEGER}, "[1;2]"),
    ({"x-guidance": {"whitespace_pattern": "a*"}, "type": "array", "items": INTEGER}, "[1a,2]"),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": INTEGER}}, "1"),
]
"""Schemas of which llguidance alone accepts this answer, which is not valid."""


@pytest.fixture(scope="module")
def onnx() -> Iterator[Pair]:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        yield pair


def is_valid(schema: Any, text: str) -> bool:
    """Return whether an answer is valid; numbers with a point are exact, where floats would fail `multipleOf`."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = jsonschema.Draft202012Validator(exact, format_checker=FORMATS)
    return bool(validator.is_valid(json.loads(text, parse_float=Decimal)))


def accepts(pair: Pair, grammar: Grammar, text: str) -> bool:
    """Return whether a grammar allows this answer and then an end."""
    constraint = pair.shared.tokens_of_grammars().constraint(grammar)
    tokens = pair.tokenizer.encode(text)
    if constraint.allows(tokens) < len(tokens):
        return False
    constraint.extend(tokens)
    return bool(pair.manifest.end_ids & {*constraint.allowed().tolist()})


def outcome(pair: Pair, schema: Any, *, seed: int = 0, temperature: float = 0.8, most: int = 150) -> str:
    """Return the outcome of a request with this schema."""
    try:
        options = SessionOptions(
            sampling=SamplingOptions(temperature=temperature), seed=seed, grammar=Grammar.of_schema(schema)
        )
        session = pair.session(options)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return "refused"
    with session:
        found = session.generate("Fill in this form, please.", max_tokens=most)
    if found.finish_reason != "stop":
        return "cut off"
    return "valid" if is_valid(schema, found.text) else f"invalid: {found.text}"


def suite() -> list[tuple[str, Any]]:
    """Return the suite's cases with the name of their file."""
    files = sorted(SUITE.rglob("*.json"))
    cases = [(path.stem, each) for path in files for each in json.loads(path.read_text(encoding="utf-8"))]
    return [
        (name, case)
        for name, case in cases
        if not any(json.dumps(part)[1:-1] in json.dumps(case) for part in UNCHECKED)
    ]


@needs_suite
def test_the_suites_schemas_are_refused_or_answered_validly(onnx: Pair) -> None:
    counts = Counter[str]()
    for name, case in suite():
        found = outcome(onnx, case["schema"], most=100)
        assert not found.startswith("invalid"), (name, case["description"], found)
        counts[found] += 1
    print(dict(counts))
    assert counts["valid"] >= 170, counts


@needs_suite
def test_the_suites_invalid_instances_are_not_accepted(onnx: Pair) -> None:
    """Each instance of an accepted schema as a whole answer, its keys in every order."""
    counts = Counter[str]()
    for name, case in suite():
        if "format" in case["schema"] if isinstance(case["schema"], dict) else False:
            continue  # whether an instance is valid depends on the validator's formats
        try:
            grammar = Grammar.of_schema(case["schema"])
            onnx.shared.tokens_of_grammars().compile(grammar)
        except InputError:
            counts["refused schemas"] += 1
            continue
        for test in case["tests"]:
            taken = any(accepts(onnx, grammar, text) for text in texts(test["data"]))
            assert test["valid"] or not taken, (name, case["description"], test["data"])
            counts["valid, accepted" if taken else "valid, not accepted" if test["valid"] else "invalid, refused"] += 1
    print(dict(counts))
    assert counts["valid, accepted"] > 300
    assert counts["valid, not accepted"] <= 25, counts  # 1.0 for 1, items after a list's places, numbers of 50 digits


def texts(data: Any) -> Iterator[str]:
    """Yield an instance as JSON on one line and compact, an object with its keys in up to 24 orders."""
    orders = [dict(each) for each in islice(permutations(data.items()), 24)] if isinstance(data, dict) else [data]
    for each in orders:
        yield json.dumps(each, ensure_ascii=False)
        yield json.dumps(each, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(("schema", "text"), LOOSE, ids=[str(number) for number in range(len(LOOSE))])
def test_what_llguidance_follows_loosely_is_refused_or_followed(schema: dict[str, Any], text: str, onnx: Pair) -> None:
    try:
        taken = accepts(onnx, Grammar.of_schema(schema), text)
    except InputError as error:
        assert str(error).startswith("the json_schema is not supported: ")  # noqa: PT017
        return
    assert not taken


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "multipleOf": 9_999_991}, "common multiple"),
        ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}, "common multiple"),
        ({"type": "number", "multipleOf": 1e-300}, "too many digits"),
        ({"type": "object", "patternProperties": {f"^p{number}$": True for number in range(101)}}, "more than"),
        ({"type": "object", "properties": {f"p{number}": True for number in range(3000)}}, "more than"),
        ({"$ref": "#"}, "contains itself"),
        ({"const": "\x01"}, "control character"),
        ({"type": "integer", "multipleOf": True}, "not supported"),
        ({"type": "integer", "multipleOf": 0}, "not supported"),
        ({"type": "integer", "required": [{"a": [[]]}], "$schema": {"a": [[]]}}, "no known draft"),
        (
            {
                "$defs": {str(n): {"oneOf": [{"$ref": f"#/$defs/{n + 1}"}] * 100} for n in range(9)} | {"9": INTEGER},
                "$ref": "#/$defs/0",
            },
            "more than 500 references",
        ),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "use anyOf"),
    ],
)
def test_what_takes_seconds_to_compile_or_has_no_answer_is_refused(
    schema: dict[str, Any], said: str, onnx: Pair
) -> None:
    with pytest.raises(InputError, match=said):
        onnx.session(SessionOptions(grammar=Grammar.of_schema(schema)))


@pytest.mark.parametrize("text", ['{"multipleOf": 1e999}', '{"multipleOf": NaN}', '{"a": ' * 5000, "[", "3"])
def test_what_is_no_schema_is_refused(text: str, onnx: Pair) -> None:
    with pytest.raises(InputError, match="not supported"):
        onnx.session(SessionOptions(grammar=Grammar(GrammarKind.SCHEMA, text)))


def test_a_tagged_union_of_references_is_followed_as_anyof(onnx: Pair) -> None:
    grammar = Grammar.of_schema(SCHEMAS["pydantic union"])
    assert accepts(onnx, grammar, '{"pet":{"kind":"cat","lives":9}}')
    assert accepts(onnx, grammar, '{"pet":{"kind":"dog","good":true}}')
    assert not accepts(onnx, grammar, '{"pet":{"kind":"dog","lives":9}}')


def test_a_compiled_grammar_is_leased_until_its_session_is_closed(onnx: Pair) -> None:
    names = []
    for _ in range(2):
        session = onnx.session(SessionOptions(grammar=Grammar.of_choices(["yes", "no"])))
        names.append([lease.name for lease in onnx.budget.leases].count("compiled grammar"))
        session.close()
    assert names == [1, 1]
    assert "compiled grammar" not in [lease.name for lease in onnx.budget.leases]


def test_common_schemas_are_answered_validly(pair: Pair) -> None:
    """All greedily and sampled on ONNX Runtime, every eighth on llama.cpp."""
    chosen = SCHEMAS if pair.runtime == "onnx" else dict(islice(SCHEMAS.items(), 0, None, 8))
    table = {
        temperature: Counter(
            outcome(pair, schema, seed=seed, temperature=temperature) for seed, schema in enumerate(chosen.values())
        )
        for temperature in (0.0, 1.0)
    }
    for temperature, counts in table.items():
        print(pair.runtime, f"temperature {temperature:g}", dict(counts))
        assert {*counts} <= {"valid", "cut off", "refused"}, counts
        assert counts["refused"] <= 4, counts
        assert counts["valid"] >= 0.6 * len(chosen), counts
