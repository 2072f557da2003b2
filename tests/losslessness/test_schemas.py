"""60 JSON Schemas, as of extraction, tools and the features of the standard: what ends by itself is valid."""

import json
import random
from collections import Counter
from typing import Any

import pytest

import edgedecode
from edgedecode import InputError, SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.structured.grammar import Grammar

pytest.importorskip("llguidance", reason="the structured extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="the test extra is not installed")

FORMATS = jsonschema.FormatChecker(["date", "uuid", "ipv4"])  # of the others it checks less than their standard
WORDS = ("name", "city", "unit", "id", "email", "status", "count", "price", "tags", "due date", "naïve", 'quo"te')
Schema = dict[str, Any]


def leaf(rng: random.Random) -> Schema:
    """Return a schema of a text, number, boolean or choice, with the standard's restrictions."""
    kinds: list[Schema] = [
        {"type": "string", "maxLength": rng.randrange(1, 12)},
        {"type": "string", "minLength": 2, "maxLength": 6},
        {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", "^[A-Z][0-9]{1,3}$", "^(on|off)$"])},
        {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4"])},
        {"type": "integer", "minimum": -rng.randrange(50), "maximum": rng.randrange(1, 2000)},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 12},
        {"type": "number", "minimum": 0, "maximum": rng.randrange(1, 100)},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": rng.sample(["low", "high", 1, 2.5, None, True, "ünï"], 3)},
        {"const": rng.choice(["fixed", 7, False])},
        {"type": ["string", "null"], "maxLength": 5},
    ]
    return rng.choice(kinds)


def schema(rng: random.Random, depth: int = 0) -> Schema:
    """Return a random schema."""
    kind = rng.random()
    if depth > 2 or kind < 0.3 * depth:
        return leaf(rng)
    if kind > 0.9:
        return {"anyOf": [schema(rng, depth + 1), leaf(rng)]}
    if kind > 0.75 and depth:
        least = rng.randrange(2)
        return {"type": "array", "items": schema(rng, depth + 1), "minItems": least, "maxItems": least + 2}
    names = rng.sample(WORDS, rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: schema(rng, depth + 1) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def tool(rng: random.Random) -> Schema:
    """Return the schema of a tool call: a name, and arguments by a shared definition."""
    return {
        "$defs": {"arguments": schema(rng, 1)},
        "type": "object",
        "properties": {"name": {"enum": ["search", "convert", "remind"]}, "arguments": {"$ref": "#/$defs/arguments"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_every_answer_that_ends_by_itself_is_valid() -> None:
    rng = random.Random(19)
    schemas = [tool(rng) if number % 3 == 0 else schema(rng) for number in range(60)]
    counts = Counter[str]()
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        for number, each in enumerate(schemas):
            try:
                options = SessionOptions(
                    sampling=SamplingOptions(temperature=0.8), seed=number, grammar=Grammar.of_schema(each)
                )
                with pair.session(options) as session:
                    found = session.generate("Fill in this form, please.", max_tokens=150)
            except InputError as error:
                assert "json_schema is not supported" in str(error)  # noqa: PT017
                counts["refused"] += 1
                continue
            if found.finish_reason != "stop":
                counts["cut off"] += 1
                continue
            jsonschema.validate(json.loads(found.text), each, format_checker=FORMATS)
            counts["valid"] += 1
    print(dict(counts))
    assert counts["valid"] + counts["cut off"] + counts["refused"] == len(schemas)
    assert counts["valid"] >= 0.85 * len(schemas), counts
    assert counts["refused"] <= 0.05 * len(schemas), counts
