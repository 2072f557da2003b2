"""`serve` under grammars that never end or take gigabytes: each is refused or left out, and others are answered."""

import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest

from tests.apps.serving import Running, asked

# isort: split
from edgedecode import InputError, Pair, SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.structured.grammar import Grammar, GrammarKind
from edgedecode.structured.guidance import GrammarTokens
from edgedecode.structured.matching import GuidanceConstraint
from tests.apps.test_serve_hostile import MIB, anonymous_nbytes, asks, grown_nbytes, post, running, server
from tests.losslessness.test_grammar_failures import PANICS

__all__ = ["running", "server"]

MINUTE = 60.0
"""Seconds that a refusal takes at most, on a busy machine too: these grammars would take minutes."""


def nested(levels: int, *, inside: str = "properties") -> bytes:
    opened, end = ('{"properties":{"a":', "}}") if inside == "properties" else ('{"anyOf":[', "]}")
    schema = opened * levels + "{}" + end * levels
    form = '{"type":"json_schema","json_schema":{"name":"n","schema":' + schema + "}}"
    return asks(max_tokens=5)[:-1] + b',"response_format":' + form.encode() + b"}"


@pytest.mark.parametrize("levels", [50, 200, 1000, 10_000, 100_000])
@pytest.mark.parametrize("inside", ["properties", "anyOf"])
def test_a_schema_nested_deeply_is_refused(levels: int, inside: str, server: Running) -> None:
    began = monotonic()
    status, value = server.post(nested(levels, inside=inside))
    assert status == (200 if levels == 50 else 400), value
    assert monotonic() - began < MINUTE


SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "needs itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "all of itself": {"allOf": [{"$ref": "#"}, {"type": "object"}]},
    "one of itself": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "doubling options": {
        "$ref": "#/$defs/0",
        "$defs": {str(n): {"oneOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(30)} | {"30": {"const": 1}},
    },
    "doubling intersections": {
        "allOf": [
            {"anyOf": [{"properties": {f"k{n}": {"type": kind}}} for kind in ("integer", "string")]} for n in range(16)
        ]
    },
    "a gigabyte of states": {"type": "integer", "multipleOf": 9_999_991},
    "20,000 properties": {"type": "object", "properties": {f"p{number}": {} for number in range(20_000)}},
    "1,900 properties": {"type": "object", "properties": {f"p{number}": {} for number in range(1900)}},
    "300 patterns": {"type": "object", "patternProperties": {f"^p{number}[a-z]*$": {} for number in range(300)}},
    "100,000 choices": {"enum": [f"value {number}" for number in range(100_000)]},
    "repeated repetition": {"type": "string", "pattern": "^(a{1000}){1000}{1000}$"},
    "optional letters": {"type": "string", "pattern": "^(a?){1000}a{1000}$"},
    "intersected patterns": {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, 12)]},
    "many alternatives": {"type": "string", "pattern": "|".join(f"w{number}" for number in range(30_000))},
    "deep groups": {"type": "string", "pattern": "(" * 50_000 + ")" * 50_000},
}
"""Grammars that never end, or that would take minutes or gigabytes."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_explodes_is_refused_or_left_out(name: str, server: Running) -> None:
    for strict in (True, False):
        before, began = anonymous_nbytes(), monotonic()
        status, value = post(server, SCHEMAS[name], strict=strict)
        if strict:
            assert (status, {*value["error"]}) == (400, {"message", "type", "param", "code"}), value
        else:
            assert status == 400 or server.note.startswith("response_format.json_schema.schema"), value
        assert monotonic() - began < MINUTE
        assert grown_nbytes(before) < 90 * MIB  # 66 were measured, with repeated repetition


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(((a*)*)*)*b$"},
        {"type": "string", "pattern": "^(x+x+)+y$"},
        {"type": "string", "pattern": "(a|b)*a(a|b){30}$"},
        {"type": "string", "pattern": "^(.{0,1000}){0,1000}$"},
        {"type": "string", "minLength": 1_000_000_000},
        {"type": "array", "items": {"type": "array", "minItems": 100_000}, "minItems": 1_000_000},
    ],
)
def test_what_explodes_elsewhere_decodes(schema: Any, server: Running) -> None:
    status, value = post(server, schema)
    assert status == 200, value


def test_a_schema_of_megabytes_is_refused(server: Running) -> None:
    """The default limit of bodies refuses 10 MB before they are parsed; here it is 4 MiB."""
    for nbytes, refusal in ((3 * MIB, 400), (6 * MIB, 413)):
        status, value = post(server, {"const": "a" * nbytes}, strict=True)
        assert (status, {*value["error"]}) == (refusal, {"message", "type", "param", "code"})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "(a{1000}){1000}{1000}"),
        (GrammarKind.REGEX, "(" * 100_000 + ")" * 100_000),
        (GrammarKind.REGEX, "|".join(f"{number:x}" for number in range(40_000))),
        (GrammarKind.REGEX, "a" * 300_000),
        (GrammarKind.LARK, "start: a~1000\na: b~1000\nb: c~1000\nc: \"x\"\n"),
        (GrammarKind.LARK, "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(60)) + 'a60: "x"\n'),
        (GrammarKind.LARK, "start: T0\n" + "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(30)) + 'T30: "x"\n'),
        (GrammarKind.LARK, "start: a\na: b\nb: a\n"),
        (GrammarKind.LARK, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000 + "\n"),
        (GrammarKind.LARK, "start: " + " | ".join(f'"w{number}" r' for number in range(5000)) + '\nr: "x"\n'),
        (GrammarKind.LARK, "start: T\nT: /.*a.{500}/ & ~/.*b.{500}/\n"),
    ],
)  # fmt: skip
def test_a_grammar_that_explodes_is_refused(kind: GrammarKind, text: str, pair: Pair) -> None:
    began = monotonic()
    with pytest.raises(InputError) as error:
        pair.session(SessionOptions(grammar=Grammar(kind, text)))
    assert "\n" not in str(error.value)
    assert monotonic() - began < MINUTE


@pytest.mark.parametrize("text", ['start: s\ns: s s | "a" |\n', 'start: e\ne: e "+" e | e e | "a"\n'])
def test_an_ambiguous_grammar_decodes(text: str, pair: Pair) -> None:
    with pair.session(SessionOptions(grammar=Grammar(GrammarKind.LARK, text), seed=1)) as session:
        assert {*session.generate("Go on.", max_tokens=40).text} <= {"a", "+"}


@pytest.mark.parametrize("begun", [True, False])
def test_a_grammar_whose_engine_panics_fails_its_answers_only(
    running: Running, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    masked = GuidanceConstraint.masked

    def fails(self: GuidanceConstraint, row: FloatArray, path: Sequence[int]) -> FloatArray:
        if not begun:  # as if the panic came with the first token
            self.extend(running.pair.tokenizer.encode('{"x":'))
        return masked(self, row, path)

    monkeypatch.setattr(GuidanceConstraint, "masked", fails)
    for _ in range(2):
        said = "the grammar's matcher failed: panic: grammar stack empty"
        error = running.refuses(asked(max_tokens=20, grammar=PANICS.text), said, status=500)
        assert (error["type"], "backtrace" in error["message"]) == ("server_error", False)
    monkeypatch.undo()
    assert post(running, {"type": "boolean"}, most=8)[0] == 200


def test_compiling_a_grammar_keeps_nobody_waiting(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, begun, go_on = GrammarTokens._compiled, threading.Event(), threading.Event()

    def slowly(self: GrammarTokens, grammar: Grammar) -> Any:
        begun.set()
        assert go_on.wait(30)
        return compiled(self, grammar)

    monkeypatch.setattr(GrammarTokens, "_compiled", slowly)
    found: list[int] = []
    slow = threading.Thread(target=lambda: found.append(post(server, {"const": "slow"})[0]))
    slow.start()
    try:
        assert begun.wait(30)
        server.answer(asked(max_tokens=5, seed=1))
        assert not found
    finally:
        go_on.set()
        slow.join()
    assert found == [200]
