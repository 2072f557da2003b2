"""Compiles grammars with llguidance, for the tokens of a model; an answer is held to one by `matching`."""

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import JsonValue

from .any_order import Spelling, any_order
from .closing import closed
from .grammar import Grammar, GrammarKind
from .matching import GuidanceConstraint, Untyped
from .one_schema import levels
from .reasons import UNSUPPORTED, is_failure, line, reason, refused
from .schema_check import checked_schema, without

_FIXED_NBYTES, _TOKEN_NBYTES = 4 << 20, 1100
_COMPILED_NBYTES, _CHARACTER_NBYTES = 1 << 20, 128
_KEPT = 4
"""Compiled grammars that are kept."""
_JSON: dict[str, JsonValue] = {
    "json_allowed_escapes": '"\\\\bfnrt',  # not u, with which a key could repeat another in other letters
    "lenient": False,
    "coerce_one_of": False,
}
_USUAL = Spelling(
    comma='", "',
    colon='": "',
    gap="",
    options={**_JSON, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
)
"""JSON on one line, as most models write it: nearly all of it but the values is forced."""
_LEVELS, _SPACES = 6, 4
"""Levels of brackets that an indent shows at most, and spaces of one."""
_LIMITS = {
    "initial_lexer_fuel": 200_000,  # 0.1 s and 20 MB for lists of words; the default is five times as much
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,  # 2 MB, an answer of as many bytes at least; the default is 250,000
    "verbose_errors": False,
}
"""Of compiling, and of each token's mask. The others are the library's: 50,000 Earley items and 2,000 in a row."""


def _other(schema: dict[str, JsonValue]) -> Spelling:
    """Return the spelling that is pretty-printed, compact and so on.

    There is at most one gap in a place, with the indent that the schema's levels need: small models fill white space
    until the answer is cut off.
    """
    try:
        most = levels(schema, schema, _LEVELS, {})
    except RecursionError:  # hundreds of references that lead to each other
        most = _LEVELS
    gap = f" |\\n {{0,{_SPACES * most}}}|\\n\\t{{0,{most}}}"
    return Spelling(
        comma='"," gap',
        colon='":" gap',
        gap="gap",
        options={**_JSON, "whitespace_pattern": gap},
        rules=("gap: GAP?", f"GAP: /{gap}/"),
    )


class GrammarTokens:
    """A model's tokens as llguidance needs them, and the last grammars; takes a second for 250,000 tokens.

    rows: the logits' width. ends: the tokens that end an answer. Raises RuntimeUnavailable without llguidance,
    InputError without an end token, CapabilityError for a tokenizer that it cannot use.
    """

    def __init__(self, tokenizer: Tokenizer, *, rows: int, ends: Collection[int]) -> None:
        self._engine, self._rows, self._ends = _engine(), rows, ends
        self._kept: dict[Grammar, tuple[Untyped, ...]] = {}
        if not ends:
            raise InputError("structured output needs a pack with an end token")
        try:
            definition = tokenizer.unspelled(ends)  # llguidance writes a special token where a key spells its name
            self._tokens = self._engine.LLTokenizer(definition, n_vocab=rows, eos_token=sorted(ends))
        except Exception as error:  # the library raises ValueError and its own types
            raise CapabilityError(f"llguidance cannot use this pack's tokenizer: {line(str(error))}") from None

    def constraint(self, grammar: Grammar) -> GuidanceConstraint:
        """Return what a grammar allows. Raises as `compile`."""
        return self._constraint(lambda: self.compile(grammar), failed=lambda: self._kept.pop(grammar, None))

    def _constraint(
        self, compiled: Callable[[], Sequence[Untyped]], failed: Callable[[], object] = lambda: None
    ) -> GuidanceConstraint:
        return GuidanceConstraint(compiled, self._tokens, rows=self._rows, ends=self._ends, failed=failed)

    def compile(self, grammar: Grammar) -> tuple[Untyped, ...]:
        """Compile a grammar and try its first token, in up to half a second; keep the last few, which requests repeat.

        Other threads go on meanwhile. Raises InputError with the reason for a grammar that llguidance does not support,
        or that is too complex.
        """
        if (kept := self._kept.pop(grammar, None)) is None:
            kept = self._compiled(grammar)
        self._kept[grammar] = kept  # as the last one
        with suppress(RuntimeError, StopIteration):  # another thread compiles too
            while len(self._kept) > _KEPT:
                self._kept.pop(next(iter(self._kept)), None)
        return kept

    def _compiled(self, grammar: Grammar) -> tuple[Untyped, ...]:
        """Return a matcher of each spelling, the usual one first."""
        if grammar.kind is not GrammarKind.SCHEMA:
            return self._tried(grammar, [_source(self._engine, grammar)])
        given = checked_schema(grammar.text)
        schema = closed(given)
        if '"oneOf"' in grammar.text:  # closed options exclude each other, and an answer may still fit two
            self._matcher(
                grammar,
                self._engine.LLMatcher.grammar_from_json_schema(json.dumps(given), overrides=dict(_USUAL.options)),
            )
        spellings = _USUAL, _other(schema)
        whole = [self._whole(grammar, schema, each) for each in spellings]
        if any(rules := [any_order(schema, each) for each in spellings]):
            lark, parts = self._engine.LLMatcher.grammar_from_lark, zip(rules, whole, strict=True)
            sources = [lark(_rules(grammar, own)) if own else other for own, other in parts]
            for own in (sources, whole, sources[:1]):  # rules may be larger than the library's own, or say more
                with suppress(InputError):
                    return self._tried(grammar, own)
        return self._tried(grammar, whole)

    def _tried(self, grammar: Grammar, sources: Sequence[str]) -> tuple[Untyped, ...]:
        matchers = tuple(self._matcher(grammar, source) for source in sources)
        try:
            _try(self._constraint(lambda: matchers))
        except CapabilityError as error:
            raise refused(grammar, str(error)) from None
        return matchers

    def _matcher(self, grammar: Grammar, source: str) -> Untyped:
        limits = self._engine.LLParserLimits(**_LIMITS)
        try:
            matcher = self._engine.LLMatcher(self._tokens, source, log_level=0, limits=limits)
        except BaseException as error:  # as above
            if not is_failure(error):
                raise
            raise refused(grammar, str(error)) from None
        if matcher.is_error():
            raise refused(grammar, matcher.get_error())
        return matcher

    def _whole(self, grammar: Grammar, schema: dict[str, JsonValue], spelling: Spelling) -> str:
        """Return a grammar that leaves the whole schema to llguidance."""
        matcher, options = self._engine.LLMatcher, dict(spelling.options)
        if grammar.or_text or grammar.lines > 1:
            part = json.dumps({**schema, "x-guidance": options})
            return str(matcher.grammar_from_lark(_rules(grammar, [f"json: %json {part}"])))
        return str(matcher.grammar_from_json_schema(json.dumps(schema), overrides=options))


def _source(engine: Untyped, grammar: Grammar) -> str:
    """Return a grammar that is no schema as llguidance writes it. Raises InputError."""
    try:
        if grammar.kind is GrammarKind.REGEX:
            return str(engine.LLMatcher.grammar_from_regex(grammar.text))
        text = grammar.text
        if grammar.kind is GrammarKind.GBNF:
            text = engine.gbnf_to_lark.gbnf_to_lark(text)
        return str(engine.LLMatcher.grammar_from_lark(text))
    except Exception as error:  # as above
        raise refused(grammar, str(error)) from None


def _rules(grammar: Grammar, json_rules: Sequence[str]) -> str:
    """Return the rules of an answer, in Lark's syntax."""
    rules = [
        f"start: lines{' | TEXT' if grammar.or_text else ''}",
        f'lines: json ("\\n" json)~0..{grammar.lines - 1}' if grammar.lines > 1 else "lines: json",
        *json_rules,
        *(["TEXT: /[^{](.|\\n)*/"] if grammar.or_text else []),
    ]
    return "\n".join([*rules, ""])


def _try(constraint: GuidanceConstraint) -> None:
    """Take two steps: most grammars that are too complex fail there, not when they are compiled."""
    for _ in range(2):
        allowed = constraint.allowed()
        constraint.forced()
        constraint.extend([int(allowed[0])])


def grammar_nbytes(rows: int) -> int:
    """Return the memory of `GrammarTokens`: 580 to 1,050 bytes a token were measured."""
    return _FIXED_NBYTES + _TOKEN_NBYTES * rows


def compiled_nbytes(grammar: Grammar) -> int:
    """Return the memory of a compiled grammar and what it adds while an answer is decoded."""
    return _COMPILED_NBYTES + _CHARACTER_NBYTES * len(grammar.text)


def _engine() -> Untyped:
    try:
        import llguidance
    except ImportError:
        raise RuntimeUnavailable("structured output needs llguidance: pip install 'edgedecode[structured]'") from None
    return llguidance


def schema_fault(schema: dict[str, JsonValue]) -> str | None:
    """Return why answers cannot follow a schema exactly; None: they can. It is compiled without a tokenizer."""
    try:
        text = Grammar.of_schema(schema).text  # its size first: compiling what is much larger takes 100 MB
        given = checked_schema(text)
        schema = closed(given)
        rules = "".join(any_order(schema, _USUAL))
        counted = [name for name in ("minProperties", "maxProperties") if rules and f'"{name}": ' not in rules]
        for each in (given, schema):  # closed options exclude each other, and an answer may still fit two
            _compile_alone(without(each, counted))
    except InputError as error:
        return str(error).removeprefix(UNSUPPORTED)
    except (ValueError, RecursionError) as error:
        return "it is nested too deeply" if isinstance(error, RecursionError) else reason(str(error))
    return None


def check_rules(grammar: Grammar) -> None:
    """Compile a grammar that is no schema without a tokenizer. Raises InputError with the reason if that fails."""
    engine = _engine()
    if fault := _fault(engine, _source(engine, grammar)):
        raise refused(grammar, fault)


def _compile_alone(schema: dict[str, JsonValue]) -> None:
    """Compile a schema without a tokenizer. Raises ValueError."""
    engine = _engine()
    source = engine.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=dict(_USUAL.options))
    if fault := _fault(engine, source):
        raise ValueError(fault)


def _fault(engine: Untyped, source: str) -> str:
    """Return why llguidance refuses a source, or panics; empty: it does not."""
    try:
        return str(engine.LLMatcher.validate_grammar(source, None, limits=engine.LLParserLimits(**_LIMITS)) or "")
    except BaseException as error:
        if not is_failure(error):
            raise
        return str(error) or type(error).__name__
