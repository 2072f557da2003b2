"""What a grammar allows in one answer: llguidance's matchers, which the answer's tokens advance."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError

from .reasons import is_failure, reason

Untyped = Any
"""llguidance's objects; its type stubs are incomplete."""
_BITS = 32
_SEPARATED = re.compile(rb'(?:[^",:]|[,:](?! )|"[^"\\]*(?:\\.[^"\\]*)*")*[,:] ', re.DOTALL)
"""JSON up to a separator of the usual spelling, which no text in it is."""


class GrammarFailed(CapabilityError):
    """The engine of grammars failed in the middle of an answer, which is no fault of the request."""


class GuidanceConstraint:
    """Implements `Constraint` with llguidance's matchers, which are advanced as the round's tokens are drawn.

    compiled: returns one for each spelling of the same answers, the preferred one first. The answer's first separator
    decides: the preferred one alone goes on if it allows it, since one spelling forces tokens that several leave open.
    failed: called when one has failed, since a panic breaks all copies of it. Every method may raise GrammarFailed.
    """

    structured = True

    def __init__(
        self,
        compiled: Callable[[], Sequence[Untyped]],
        tokens: Untyped,
        *,
        rows: int,
        ends: Collection[int],
        failed: Callable[[], object],
    ) -> None:
        self._compiled, self._failed = compiled, failed
        self._tokens, self._rows, self._ends = tokens, rows, frozenset(ends)
        self._matchers: list[Untyped] = []
        self.begin()

    def begin(self, prompt: Sequence[int] = ()) -> None:
        """Start a new answer, with new matchers if one has failed. What it may be does not depend on the prompt."""
        self._matchers = self._matchers or [each.deep_copy() for each in self._compiled()]
        for matcher in self._matchers:
            self._ask(matcher, "reset")
        self._left = list(self._matchers)
        """Those that allow the answer so far."""
        self._text = b""
        """The answer so far, while there are several."""
        self._path = 0
        """Tokens of the running round that the matchers have consumed."""

    def forced(self) -> Sequence[int]:
        return reduce(_common, [self._forced(matcher) for matcher in self._left])

    def _forced(self, matcher: Untyped) -> list[int]:
        return [] if self._stopped(matcher) else list(self._ask(matcher, "compute_ff_tokens"))

    def allows(self, tokens: Sequence[int]) -> int:
        counts = [self._allows(each, tokens) for each in self._left]
        if len(counts) > 1 and _decides(self._text + self._tokens.decode_bytes(list(tokens[: counts[0]]))):
            return int(counts[0])
        return max(counts)

    def _allows(self, matcher: Untyped, tokens: Sequence[int]) -> int:
        return 0 if self._stopped(matcher) else int(self._ask(matcher, "validate_tokens", list(tokens)))

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        self._consume(path[self._path :])
        self._path = len(path)
        result = np.full_like(row, -np.inf)
        allowed = self.allowed()
        result[allowed] = row[allowed]
        return result

    def allowed(self) -> npt.NDArray[np.int64]:
        """Return the tokens that may come next. Raises CapabilityError if there are none."""
        bits = reduce(np.bitwise_or, [self._mask(matcher) for matcher in self._left])
        found = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._rows])
        if not len(found):
            raise CapabilityError("the grammar allows no further token of this model's vocabulary")
        return found

    def _mask(self, matcher: Untyped) -> npt.NDArray[np.int32]:
        """Return the bits of the tokens that may come next; after a complete answer, those that end it."""
        bits = np.empty(-(-self._rows // _BITS), np.int32)
        self._ask(matcher, "unsafe_compute_mask_ptr", bits.ctypes.data, bits.nbytes)
        return bits

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        """The mask has decided."""
        return True

    def extend(self, tokens: Sequence[int]) -> None:
        self._consume(tokens[self._path :])
        self._path = 0

    def _consume(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if len(self._left) > 1:
                self._choose(token)
            for matcher in self._left:
                if not self._stopped(matcher):  # only an end token follows a complete answer
                    self._ask(matcher, "consume_token", token)

    def _choose(self, token: int) -> None:
        """Leave the spellings that allow a token, and if it decides, the first of them."""
        if token in self._ends:
            return
        self._left = [each for each in self._left if self._allows(each, [token])] or self._left[:1]
        self._text += self._tokens.decode_bytes([token])
        if _decides(self._text):
            del self._left[1:]

    def _stopped(self, matcher: Untyped) -> bool:
        """Return whether an answer is complete."""
        return bool(self._ask(matcher, "is_stopped"))

    def _ask(self, matcher: Untyped, method: str, *arguments: object) -> Untyped:
        """Call a matcher's method. Raises GrammarFailed if it fails or panics."""
        try:
            found = getattr(matcher, method)(*arguments)
            fault = matcher.get_error() if matcher.is_error() else ""
        except BaseException as error:
            if not is_failure(error):
                raise
            found, fault = None, str(error) or type(error).__name__
        if fault:
            self._matchers = []
            self._failed()
            raise GrammarFailed(f"the grammar's matcher failed: {reason(fault)}")
        return found


def _common(one: list[int], other: list[int]) -> list[int]:
    """Return what two lists begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _decides(text: bytes) -> bool:
    """Return whether the beginning of an answer is text, or JSON up to a separator of the usual spelling."""
    return text[:1] not in b"{[" or _SEPARATED.match(text) is not None
