"""Drafts: chains and trees of proposed tokens, and the part of a vocabulary that a drafter can propose.

A tree is given by each node's parent, parents first; -1 is the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray
from edgedecode.errors import InputError
from edgedecode.sampling.probs import Probs

__all__ = ["FORCED", "TARGET", "WRITER", "Draft", "DraftMode", "TrimmedVocabulary"]

TARGET, WRITER, FORCED = "target", "draft", "forced"
"""Sources of tokens: the target, the draft model where it writes without verification, and a constraint."""


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
    at_once: int = field(default=0, compare=False)
    """Rows that one pass of its drafter's model computed, of tokens that it dropped too; 0: a pass for each token."""

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


def chain(length: int) -> tuple[int, ...]:
    """Return the parents of a chain: -1, 0, 1, …"""
    return tuple(range(-1, length - 1))


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether every node continues the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def check_parents(parents: Sequence[int], *, length: int) -> None:
    """Raise ValueError unless `parents` describes a tree of `length` nodes, parents first."""
    if len(parents) != length:
        raise ValueError(f"{len(parents)} parents for {length} tokens")
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"node {index} has parent {parent}: parents come before their children, -1 is the root")


def depths(parents: Sequence[int]) -> list[int]:
    """Return each node's depth; children of -1 have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of every node, the root's in the last place (so that index -1 finds them)."""
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for index, parent in enumerate(parents):
        result[parent].append(index)
    return result
