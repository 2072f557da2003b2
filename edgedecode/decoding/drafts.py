"""Drafts: chains and trees of proposed tokens, and the part of a vocabulary that a drafter can propose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray
from edgedecode.errors import InputError
from edgedecode.sampling.probs import Probs

from .tree import depths

__all__ = ["TARGET", "WRITER", "Draft", "DraftMode", "TrimmedVocabulary"]

TARGET, WRITER = "target", "draft"
"""Sources of tokens: the target, and the draft model where it writes without verification."""


class DraftMode(Enum):
    """How the drafter chose its tokens. The drafter declares it; the verifier never guesses."""

    DETERMINISTIC = "deterministic"
    SAMPLED = "sampled"
    """One chain whose tokens were sampled from `Draft.probs`, as the ratio rule requires."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal: a chain, or a tree in which parents precede their children.

    parents[i] is the index of token i's parent in this draft, -1 for the context's last token; None is a chain.
    probs[i], in mode SAMPLED, is the distribution that token i was sampled from. A draft may be empty.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    probs: tuple[Probs, ...] | None = None
    mode: DraftMode = DraftMode.DETERMINISTIC
    source: str = "none"
    """The drafter's name, for statistics and colouring; filled in where the drafter left it out."""
    match: int = 0
    """Length of the context suffix that a lookup found again; a longer match is more reliable. 0: no lookup."""
    vocabulary: TrimmedVocabulary | None = field(default=None, compare=False)
    """Ids that its drafter could have proposed; None: all."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Number of its levels, the length of a chain."""
        return len(self.tokens) if self.parents is None else 1 + max(depths(self.parents), default=-1)

    def cut(self, length: int) -> Draft:
        """Return its first `length` tokens; a chain stays a chain, and parents precede their children."""
        if length >= len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:length],
            parents=None if self.parents is None else self.parents[:length],
            probs=None if self.probs is None else self.probs[:length],
        )


EMPTY_DRAFT = Draft()


@dataclass(frozen=True, slots=True, eq=False)
class TrimmedVocabulary:
    """Ids in ascending order: row i of a trimmed draft is the id `ids[i]`. Raises InputError for anything else."""

    ids: IntArray
    size: int
    """Number of ids in the full vocabulary."""
    _inside: npt.NDArray[np.bool_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = self.ids
        if not len(ids) or ids[0] < 0 or ids[-1] >= self.size or (ids[1:] <= ids[:-1]).any():
            raise InputError(f"a trimmed vocabulary's ids must ascend, from 0 to below {self.size}")
        inside = np.zeros(self.size, np.bool_)
        inside[ids] = True
        object.__setattr__(self, "_inside", inside)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and 0 <= token < self.size and bool(self._inside[token])
