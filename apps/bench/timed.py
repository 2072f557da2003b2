"""A stopwatch around a language model: when each of its passes began and ended. Changes nothing of what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from edgedecode import Pair
from edgedecode.protocols import LanguageModel, State
from edgedecode.types import AdapterUse, ModelCard, Output, RowRequest

__all__ = ["Pass", "TimedModel", "TimedPair"]


class Pass(NamedTuple):
    """One call of `forward` with `width` tokens: from its entry to its return, the runtime's own glue included."""

    started: float
    ended: float
    width: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class TimedModel:
    """A model that records its passes."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.passes: list[Pass] = []

    @property
    def card(self) -> ModelCard:
        return self._model.card

    def new_state(self, capacity: int) -> State:
        return self._model.new_state(capacity)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        started = perf_counter()
        output = self._model.forward(tokens, state, parents=parents, rows=rows, adapter=adapter)
        self.passes.append(Pass(started, perf_counter(), len(tokens)))
        return output

    def close(self) -> None:
        self._model.close()


class TimedPair:
    """A pair whose models are under stopwatches. `draft` is None when the pack has none, or none is wanted."""

    def __init__(self, pair: Pair, *, with_draft: bool) -> None:
        self.pair = pair
        pair.target = self.target = TimedModel(pair.target)
        self.draft: TimedModel | None = None
        if with_draft and pair.draft is not None:
            pair._draft = self.draft = TimedModel(pair.draft)

    def clear(self) -> None:
        """Forget the passes so far."""
        self.target.passes.clear()
        if self.draft is not None:
            self.draft.passes.clear()

    @property
    def draft_passes(self) -> list[Pass]:
        return [] if self.draft is None else self.draft.passes
