"""Grammars with llguidance: the tokens that are forced, allowed and masked, in about 50 µs a token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, InputError, RuntimeUnavailable
from edgedecode.text.tokenizer import Tokenizer

from .grammar import Grammar, GrammarKind

__all__ = ["GrammarTokens", "GuidanceConstraint", "grammar_nbytes"]

Untyped = Any
"""llguidance's objects, which have no types that hold."""
_BITS = 32
_FIXED_NBYTES, _TOKEN_NBYTES = 4 << 20, 1100
_MAKERS = {
    GrammarKind.SCHEMA: "grammar_from_json_schema",
    GrammarKind.REGEX: "grammar_from_regex",
    GrammarKind.LARK: "grammar_from_lark",
}


class GrammarTokens:
    """A model's tokens as llguidance needs them; takes a second for 250,000 of them.

    rows: the logits' width. ends: the tokens that end an answer. Raises RuntimeUnavailable without llguidance,
    InputError without an end token, CapabilityError for a tokenizer that it cannot use.
    """

    def __init__(self, tokenizer: Tokenizer, *, rows: int, ends: Collection[int]) -> None:
        self._engine, self._rows, self._ends = _engine(), rows, ends
        if not ends:
            raise InputError("structured output needs a pack with an end token")
        try:
            self._tokens = self._engine.LLTokenizer(tokenizer.definition, n_vocab=rows, eos_token=sorted(ends))
        except Exception as error:  # the library raises ValueError and its own types
            raise CapabilityError(f"llguidance cannot use this pack's tokenizer: {_line(str(error))}") from None

    def constraint(self, grammar: Grammar) -> GuidanceConstraint:
        """Compile a grammar. Raises InputError with the reason for one that llguidance does not support."""
        try:
            # Compact JSON: small models fill flexible white space until the answer is cut off.
            options = {"defaults": {"whitespace_flexible": False}} if grammar.kind is GrammarKind.SCHEMA else {}
            text = getattr(self._engine.LLMatcher, _MAKERS[grammar.kind])(grammar.text, **options)
            matcher = self._engine.LLMatcher(self._tokens, text, log_level=0)
        except Exception as error:  # as above
            raise _refused(grammar, str(error)) from None
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return GuidanceConstraint(matcher, rows=self._rows, ends=self._ends)


def grammar_nbytes(rows: int) -> int:
    """Return the memory of `GrammarTokens` and a compiled grammar: 580 to 1,050 bytes a token were measured."""
    return _FIXED_NBYTES + _TOKEN_NBYTES * rows


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
            return ()
        found: list[int] = self._matcher.compute_ff_tokens()
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
        if self._matcher.is_stopped():
            allowed = np.array(sorted(self._ends), np.int64)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._check()
            bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(row)]
            allowed = np.flatnonzero(bits)
        if not len(allowed):
            raise CapabilityError("the grammar allows no further token of this model's vocabulary")
        result[allowed] = row[allowed]
        return result

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
    return InputError(f"the {grammar.kind} is not supported: {_line(reason)}")


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
