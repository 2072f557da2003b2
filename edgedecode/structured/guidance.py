"""Grammars with llguidance: the tokens that are forced, allowed and masked, in about 50 µs a token."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from edgedecode.text.tokenizer import Tokenizer

from .grammar import Grammar, GrammarKind
from .schema_check import checked_schema

__all__ = ["GrammarTokens", "GuidanceConstraint", "compiled_nbytes", "grammar_nbytes"]

Untyped = Any
"""llguidance's objects, which have no types that hold."""
_BITS = 32
_FIXED_NBYTES, _TOKEN_NBYTES = 4 << 20, 1100
_COMPILED_NBYTES, _CHARACTER_NBYTES = 1 << 20, 128
_KEPT = 4
"""Compiled grammars that are kept."""
_JSON = {
    "whitespace_flexible": False,  # compact: small models fill flexible white space until the answer is cut off
    "json_allowed_escapes": '"\\\\bfnrt',  # not u, with which a key could repeat another in other letters
    "lenient": False,
    "coerce_one_of": False,
}
_LIMITS = {
    "initial_lexer_fuel": 200_000,  # 0.1 s and 20 MB for lists of words; the default is five times as much
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,  # 2 MB, an answer of as many bytes at least; the default is 250,000
    "verbose_errors": False,
}
"""Of compiling, and of each token's mask. The others are the library's: 50,000 Earley items and 2,000 in a row."""


class GrammarTokens:
    """A model's tokens as llguidance needs them, and the last grammars; takes a second for 250,000 tokens.

    rows: the logits' width. ends: the tokens that end an answer. Raises RuntimeUnavailable without llguidance,
    InputError without an end token, CapabilityError for a tokenizer that it cannot use.
    """

    def __init__(self, tokenizer: Tokenizer, *, rows: int, ends: Collection[int]) -> None:
        self._engine, self._rows, self._ends = _engine(), rows, ends
        self._kept: dict[Grammar, Untyped] = {}
        if not ends:
            raise InputError("structured output needs a pack with an end token")
        try:
            self._tokens = self._engine.LLTokenizer(tokenizer.definition, n_vocab=rows, eos_token=sorted(ends))
        except Exception as error:  # the library raises ValueError and its own types
            raise CapabilityError(f"llguidance cannot use this pack's tokenizer: {_line(str(error))}") from None

    def constraint(self, grammar: Grammar) -> GuidanceConstraint:
        """Return what a grammar allows. Raises as `compile`."""
        return GuidanceConstraint(self.compile(grammar).deep_copy(), rows=self._rows, ends=self._ends)

    def compile(self, grammar: Grammar) -> Untyped:
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

    def _compiled(self, grammar: Grammar) -> Untyped:
        try:
            source = self._source(grammar)
            limits = self._engine.LLParserLimits(**_LIMITS)
            matcher = self._engine.LLMatcher(self._tokens, source, log_level=0, limits=limits)
        except InputError:
            raise
        except Exception as error:  # as above
            raise _refused(grammar, str(error)) from None
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        try:
            _try(GuidanceConstraint(matcher.deep_copy(), rows=self._rows, ends=self._ends))
        except CapabilityError as error:
            raise _refused(grammar, str(error)) from None
        return matcher

    def _source(self, grammar: Grammar) -> str:
        """Return the grammar as llguidance writes it."""
        matcher = self._engine.LLMatcher
        if grammar.kind is not GrammarKind.SCHEMA:
            maker = {GrammarKind.REGEX: matcher.grammar_from_regex, GrammarKind.LARK: matcher.grammar_from_lark}
            source: str = maker[grammar.kind](grammar.text)
            return source
        schema = checked_schema(grammar.text)
        if grammar.or_text or grammar.lines > 1:
            rules = [
                f"start: lines{' | TEXT' if grammar.or_text else ''}",
                f'lines: json ("\\n" json)~0..{grammar.lines - 1}' if grammar.lines > 1 else "lines: json",
                f"json: %json {json.dumps({**schema, 'x-guidance': _JSON})}",
                *(["TEXT: /[^{](.|\\n)*/"] if grammar.or_text else []),
            ]
            source = matcher.grammar_from_lark("\n".join([*rules, ""]))
        else:
            source = matcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON)
        return source


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


class GuidanceConstraint:
    """Implements `Constraint` with one of llguidance's matchers, which is advanced as the round's tokens are drawn."""

    def __init__(self, matcher: Untyped, *, rows: int, ends: Collection[int]) -> None:
        self._matcher, self._rows, self._ends = matcher, rows, frozenset(ends)
        self._mask = np.zeros(-(-rows // _BITS), np.int32)
        self._path = 0
        """Tokens of the running round that the matcher has consumed."""

    def begin(self) -> None:
        """Start a new answer."""
        self._matcher.reset()
        self._path = 0

    def forced(self) -> Sequence[int]:
        if self._matcher.is_stopped():
            self._check()
            return ()
        found: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return found

    def allows(self, tokens: Sequence[int]) -> int:
        if self._matcher.is_stopped():
            return 0
        count: int = self._matcher.validate_tokens(list(tokens))
        return count

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        self._consume(path[self._path :])
        self._path = len(path)
        result = np.full_like(row, -np.inf)
        allowed = self.allowed()
        result[allowed] = row[allowed]
        return result

    def allowed(self) -> npt.NDArray[np.int64]:
        """Return the tokens that may come next. Raises CapabilityError if there are none."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return np.array(sorted(self._ends), np.int64)
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._rows]
        found = np.flatnonzero(bits)
        if not len(found):
            raise CapabilityError("the grammar allows no further token of this model's vocabulary")
        return found

    def extend(self, tokens: Sequence[int]) -> None:
        self._consume(tokens[self._path :])
        self._path = 0

    def _consume(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._matcher.is_stopped():
                return  # only an end token follows a complete answer
            self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CapabilityError(f"the grammar's matcher failed: {_line(self._matcher.get_error())}")


def _engine() -> Untyped:
    try:
        import llguidance
    except ImportError:
        raise RuntimeUnavailable("structured output needs llguidance: pip install 'edgedecode[structured]'") from None
    return llguidance


def _refused(grammar: Grammar, reason: str) -> InputError:
    if "coerce_one_of" in reason:  # llguidance's advice loosens the schema
        reason = "the options of a oneOf do not provably exclude each other: use anyOf"
    elif "NoExtension" in reason:
        reason = "no answer follows it"
    return InputError(f"the {grammar.kind} is not supported: {_line(reason)}")


def _line(text: str) -> str:
    return " ".join(text.removesuffix("<non-verbose/>").split())[:300]
