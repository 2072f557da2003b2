"""Smaller heads of a model: what an engine offers that can compute the logits of some of the ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edgedecode.protocols import State
from edgedecode.types import AdapterUse, IntArray, Output, RowRequest

__all__ = ["Head", "HeadedModel", "LocalHead"]


class Head(Protocol):
    """A smaller head of a model: the same passes over the same states, logits of some of the ids only."""

    @property
    def token_ids(self) -> IntArray:
        """Row → id, ascending. The array is not written to while a head has it."""
        ...

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        """Do what the model's `forward` does, with logits [rows asked for, len(token_ids)]."""
        ...


class LocalHead(Head, Protocol):
    """A head whose ids are chosen anew whenever one likes: its rows are gathered from the whole head's."""

    @property
    def most(self) -> int:
        """Ids it takes at most."""
        ...

    def choose(self, ids: IntArray) -> None:
        """Take these ids, ascending, 1 to `most`, for the passes to come. Raises InputError for others."""
        ...


@runtime_checkable
class HeadedModel(Protocol):
    """A model with smaller heads beside its own, over one set of weights and states."""

    @property
    def trimmed(self) -> Head | None:
        """The head of the pack's trimmed vocabulary; None: this graph has none."""
        ...

    @property
    def local(self) -> LocalHead | None: ...
