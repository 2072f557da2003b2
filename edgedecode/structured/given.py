"""What a program restricts one answer by: a set of tokens, or a function that is asked about each drawn token."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError, cause
from edgedecode.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Only these token ids. An answer ends before its limit only if end tokens are among them."""

    ids: Collection[int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer so far with a drawn token at its end."""

    text: str
    """Of the complete characters."""
    tokens: tuple[int, ...]
    ended: bool
    """Whether the token ends the answer."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Only tokens for which a function is true. It is called within a round, when the session cannot be used.

    A token is drawn and asked about. If it is refused, the next one is drawn from the rest: the answer is distributed
    as if all refused tokens were masked, and few are asked about (adaptive rejection sampling, Lipkin, 2504.05410).
    Top-k, top-p and the like choose before the function, and again among the rest if it refuses all that they leave.
    """

    function: Callable[[Candidate], bool]


Given: TypeAlias = TokenSet | Checked


class SetConstraint:
    """Implements `Constraint` for a set of tokens. Raises InputError for ids outside the vocabulary, or none."""

    structured = True

    def __init__(self, ids: Iterable[int], *, vocabulary_size: int) -> None:
        self._ids = frozenset(map(index, ids))
        if wrong := [each for each in self._ids if not 0 <= each < vocabulary_size]:
            raise InputError(f"{wrong[0]} is no token of this model: ids are 0 to {vocabulary_size - 1}")
        if not self._ids:
            raise InputError("a set without tokens allows no answer")
        self._allowed = np.array(sorted(self._ids))

    def begin(self, prompt: Sequence[int]) -> None:
        """Do nothing: the same tokens are always allowed."""

    def forced(self) -> Sequence[int]:
        return ()

    def allows(self, tokens: Sequence[int]) -> int:
        return next((place for place, token in enumerate(tokens) if token not in self._ids), len(tokens))

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        result = np.full_like(row, -np.inf)
        result[self._allowed] = row[self._allowed]
        return result

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        return True

    def extend(self, tokens: Sequence[int]) -> None:
        """As `begin`."""


class CheckConstraint:
    """Implements `Constraint` for a function."""

    structured = True

    def __init__(self, function: Callable[[Candidate], bool], *, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        self._function, self._ends, self._tokenizer = function, ends, tokenizer
        self.begin()

    def begin(self, prompt: Sequence[int] = ()) -> None:
        """Start a new answer. The function is not shown the prompt."""
        self._tokens, self._text, self._detokenizer = list[int](), "", self._tokenizer.detokenizer()

    def forced(self) -> Sequence[int]:
        return ()

    def allows(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        return row

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        """Ask the function. Raises InputError if it raises."""
        new = [*path, token]
        text = self._text + self._detokenizer.preview(new)
        candidate = Candidate(text, (*self._tokens, *new), token in self._ends)
        try:
            return bool(self._function(candidate))
        except Exception as error:
            raise InputError(f"the constraint's function failed: {type(error).__name__}: {cause(error)}") from error

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        self._text += self._detokenizer.push(tokens)
