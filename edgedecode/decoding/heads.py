"""Protocols of drafting heads: what they read of a target's state, and how they draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from edgedecode.arrays import FloatArray

from .model import LanguageModel, State

__all__ = ["Assistant", "BlockHead", "DraftHead", "FeatureState", "Features", "HeadOutput"]


class Features(Protocol):
    """What some layers of a target read at a state's last positions: the residual stream, before their norms."""

    @property
    def oldest(self) -> int:
        """The first position that is kept; every later one of the state is too."""
        ...

    def rows(self, start: int, stop: int) -> FloatArray:
        """Return those of settled positions, float32 [stop - start, layers · hidden size]: a copy."""
        ...


@runtime_checkable
class FeatureState(State, Protocol):
    """A state that can keep features, which a drafting head reads."""

    def keep_features(self) -> Features:
        """Keep those of every pass from now on, until the state is closed; the same object for every call.

        Raises CapabilityError if its model was opened without them, BudgetExceeded before allocating.
        """
        ...


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The last row's logits, [card.rows], a view until the next pass, and what the next step reads, [hidden size]."""

    logits: FloatArray
    hidden: FloatArray


@runtime_checkable
class DraftHead(LanguageModel, Protocol):
    """A drafting head: a model of one layer that reads what a target computed (EAGLE-3, 2503.01840)."""

    def draft(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        features: FloatArray | None = None,
        hidden: FloatArray | None = None,
    ) -> HeadOutput:
        """Append rows as pending. Each reads a position's features, or the row before's output, and the next token.

        Exactly one of both is given, [rows, its width]. The logits predict the token after the last of `tokens`.
        """
        ...


@runtime_checkable
class Assistant(DraftHead, Protocol):
    """A drafting head without keys and values of its own: it reads its target's (Gemma 4)."""

    def attend(self, state: State, target: State, *, length: int) -> None:
        """Let the rows of this model's state read the first `length` positions of a target's state, from now on.

        The features are those of position length - 1. Raises CapabilityError for a target of another kind.
        """
        ...


@runtime_checkable
class BlockHead(LanguageModel, Protocol):
    """A drafting head that computes all tokens of a draft in one pass (DFlash, 2602.06036; DSpark)."""

    longest: int
    """Tokens of a draft at most."""

    def draft_block(self, token: int, state: State, *, features: FloatArray, count: int) -> FloatArray:
        """Append a row for each position's features [positions, width], then those of a block, all as pending.

        The block's rows are not part of the text: keep those before them. token: the last known one, whose position is
        behind the features'. Returns the logits of the `count` tokens behind it, a view until the next pass, which
        `link` makes depend on each other. count 0: there is no block.
        """
        ...

    def link(self, row: FloatArray, before: int) -> None:
        """Change a row of a block's logits in place, for the token before it."""
        ...
