"""A grammar's engine that fails or panics ends one answer with an error; the next one starts from a new grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.structured.grammar import Grammar, GrammarKind

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

from edgedecode.structured.guidance import GrammarTokens
from edgedecode.structured.matching import GrammarFailed, GuidanceConstraint

PANICS = Grammar(
    GrammarKind.LARK,
    "start: one | other\n"
    'one: %json {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],'
    ' "x-guidance": {"whitespace_pattern": " |\\\\n"}}\n'
    'other: "{" "\\"x\\"" ":" list "}"\n'
    'list: %json {"type": "array"}\n',
)
"""llguidance 1.9.1 panics once this answer has begun: a gap that one option allows ends the other."""
ITEM: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
SOME, TEXT = {**ITEM, "minProperties": 1}, {"type": "string"}
PATTERNS = {**ITEM, "patternProperties": {"^a": {}, "^b": {}}}
BESIDE = {**ITEM, "anyOf": [{"properties": {"y": {"type": "integer"}}}]}
ALIKE: list[dict[str, Any]] = [
    {"anyOf": [SOME, {}]},
    {"anyOf": [True, SOME]},
    {"anyOf": [PATTERNS, {"description": "anything"}]},
    {"anyOf": [BESIDE, {}]},
    {"anyOf": [SOME, {"type": "object"}]},
    {"anyOf": [{"type": "object", "properties": {"x": {}}}, SOME]},
    {"anyOf": [PATTERNS, {"type": "object", "properties": {"x": TEXT}}]},
    {"anyOf": [{"anyOf": [SOME, {"type": "null"}]}, {"properties": {"x": TEXT}}]},
    {"anyOf": [{"type": "array"}, SOME, {"additionalProperties": {"enum": ["a b", 1]}}]},
]
"""Options that may begin alike, and of which llguidance compiles one on its own. All take an object with a text `x`."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        yield pair


@pytest.fixture
def grammars(pair: Pair) -> GrammarTokens:
    return GrammarTokens(pair.tokenizer, rows=pair.tokenizer.size, ends=pair.manifest.end_ids)


def take(constraint: GuidanceConstraint, text: str, pair: Pair) -> None:
    """Advance over an answer as a round does, token by token."""
    for token in pair.tokenizer.encode(text):
        assert constraint.allows([token]) == 1
        assert token in constraint.allowed()
        constraint.forced()
        constraint.extend([token])


def take_again(constraint: GuidanceConstraint, text: str, pair: Pair) -> None:
    for _ in range(3):
        take(constraint, text, pair)
        constraint.begin()


@pytest.mark.parametrize("schema", ALIKE, ids=[str(number) for number in range(len(ALIKE))])
@pytest.mark.parametrize("form", [{}, {"separators": (",", ":")}, {"indent": 2}], ids=["one line", "compact", "pretty"])
def test_options_that_begin_alike_are_told_apart_later(
    schema: dict[str, Any], form: dict[str, Any], pair: Pair, grammars: GrammarTokens
) -> None:
    """In each of them llguidance panicked after the first colon of a pretty-printed answer."""
    for within in (schema, {"type": "array", "items": schema}):
        value = {"x": "a b"}
        constraint = grammars.constraint(Grammar.of_schema(within))
        take(constraint, json.dumps(value if within is schema else [value, {"x": 1}, value], **form), pair)
        assert pair.manifest.end_ids & {*constraint.allowed().tolist()}


class Failing:
    """A matcher that fails from its `after`-th call of one method on, as llguidance's do: by a panic or an error."""

    def __init__(self, inner: Any, method: str, *, after: int, panics: bool) -> None:
        self._inner, self._method, self._left, self._panics = inner, method, after, panics
        self._failed = False

    def deep_copy(self) -> Failing:
        return Failing(self._inner.deep_copy(), self._method, after=self._left, panics=self._panics)

    def is_error(self) -> bool:
        return self._failed

    def get_error(self) -> str:
        return "panic: no stack\n<backtrace>\n  0: <unknown>" if self._failed else ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def called(*arguments: object) -> object:
            self._left -= 1
            self._failed = self._left < 0
            if self._failed and self._panics:
                raise PanicException("no stack")
            return found(*arguments)

        return called


class PanicException(BaseException):
    """As pyo3 raises for a panic of Rust."""


METHODS = ("reset", "is_stopped", "compute_ff_tokens", "validate_tokens", "unsafe_compute_mask_ptr", "consume_token")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("panics", [True, False])
def test_a_matcher_that_fails_ends_one_answer_and_the_next_one_has_a_new_grammar(
    method: str, pair: Pair, grammars: GrammarTokens, monkeypatch: pytest.MonkeyPatch, *, panics: bool
) -> None:
    broken, other = Grammar.of_schema({"type": "array"}), Grammar.of_choices(["yes"])
    compile_one, compiled = GrammarTokens._compiled, list[Grammar]()

    def first_fails(self: GrammarTokens, grammar: Grammar) -> tuple[Any, ...]:
        compiled.append(grammar)
        found = compile_one(self, grammar)
        fails = compiled.count(broken) == 1 and grammar == broken
        return tuple(Failing(each, method, after=1, panics=panics) for each in found) if fails else found

    monkeypatch.setattr(GrammarTokens, "_compiled", first_fails)
    grammars.constraint(other)
    constraint = grammars.constraint(broken)
    with pytest.raises(GrammarFailed, match=r"^the grammar's matcher failed: .*no stack$"):
        take_again(constraint, "[1, [2]]", pair)
    with pytest.raises(GrammarFailed):
        constraint.allowed()  # it stays an error until the next answer
    constraint.begin()
    for each in (constraint, grammars.constraint(broken)):
        take(each, "[1, [2]]", pair)
    grammars.constraint(other)
    assert compiled == [other, broken, broken]


def test_other_exceptions_pass(pair: Pair, grammars: GrammarTokens) -> None:
    constraint = grammars.constraint(Grammar.of_schema({"type": "array"}))

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    matcher = Failing(None, "", after=0, panics=False)
    matcher.consume_token, matcher.is_stopped = interrupted, lambda: False  # type: ignore[attr-defined]
    constraint._left = [matcher]
    with pytest.raises(KeyboardInterrupt):
        constraint.extend([1])


def test_a_panic_of_the_engine_ends_the_answer_and_no_other(pair: Pair) -> None:
    options = SessionOptions(sampling=SamplingOptions(temperature=0.0), grammar=PANICS)
    grammars = pair.shared.tokens_of_grammars()
    with pair.session(options) as session:
        for _ in range(2):
            with pytest.raises(GrammarFailed, match=r"failed: panic: grammar stack empty.*}$"):
                session.generate("Well?", max_tokens=20)
            assert PANICS not in grammars._kept
            assert pair.tokenizer.decode(session.tokens).endswith('{"x":')
    with pair.session(SessionOptions(grammar=Grammar.of_choices(["yes", "no"]))) as session:
        assert session.generate("Well?", max_tokens=20).text in ("yes", "no")
