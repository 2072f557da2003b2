"""Wrappers around language models that record the start and end of each forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, ParamSpec, cast

from edgedecode import Pair
from edgedecode.arrays import IntArray
from edgedecode.decoding.model import (
    AdapterFileModel,
    AdapterModel,
    AdapterUse,
    Head,
    HeadedModel,
    LanguageModel,
    LowRank,
    ModelCard,
    Output,
    State,
)
from edgedecode.engines.interface import Device, ModelFootprint, ModelRequest, PlanningRuntime, Runtime, draft_engine
from edgedecode.errors import CapabilityError
from edgedecode.sampling.row_draw import RowDraw, row_draw_of

_Call = ParamSpec("_Call")


class Pass(NamedTuple):
    """One call of `forward` with `width` tokens, from entry to return, the runtime's own Python code included."""

    started: float
    ended: float
    width: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def _timed(forward: Callable[_Call, Output], passes: list[Pass]) -> Callable[_Call, Output]:
    """Return a `forward` that adds each of its passes to `passes`."""

    def timed(*call: _Call.args, **options: _Call.kwargs) -> Output:
        started = perf_counter()
        output = forward(*call, **options)
        passes.append(Pass(started, perf_counter(), len(cast("Sequence[int]", call[0]))))
        return output

    return timed


class TimedModel:
    """A model that records its passes."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.passes: list[Pass] = []
        self.forward = _timed(model.forward, self.passes)

    @property
    def card(self) -> ModelCard:
        return self._model.card

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        return self._model.new_state(capacity, rows=rows, tree=tree)

    @property
    def trimmed(self) -> TimedHead | None:
        head = self._model.trimmed if isinstance(self._model, HeadedModel) else None
        return None if head is None else TimedHead(head, self.passes)

    def close(self) -> None:
        self._model.close()


class TimedAdapterModel(TimedModel):
    """A model that takes adapters, too."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        assert isinstance(model, AdapterModel)
        self._taker = model

    def add_adapter(self, digest: str, matrices: Sequence[LowRank], *, scale: float = 1.0) -> None:
        self._taker.add_adapter(digest, matrices, scale=scale)

    def prepare_adapter(self, use: AdapterUse) -> object:
        return self._taker.prepare_adapter(use)

    def remove_adapter(self, digest: str, *, scale: float | None = None) -> None:
        self._taker.remove_adapter(digest, scale=scale)


class TimedAdapterFileModel(TimedAdapterModel):
    """A model that takes adapters as GGUF files, too."""

    def add_adapter_file(self, digest: str, path: Path, *, scale: float = 1.0) -> None:
        assert isinstance(self._model, AdapterFileModel)
        self._model.add_adapter_file(digest, path, scale=scale)


class TimedHead:
    """A smaller head that records its passes in the list of its model."""

    def __init__(self, head: Head, passes: list[Pass]) -> None:
        self._head = head
        self.forward = _timed(head.forward, passes)

    @property
    def token_ids(self) -> IntArray:
        return self._head.token_ids


class TimedRuntime:
    """An engine whose models record their passes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def draft_name(self) -> str:
        return draft_engine(self._runtime)

    @property
    def draft_place(self) -> str | None:
        return getattr(self._runtime, "draft_place", None)

    def devices(self) -> Sequence[Device]:
        return self._runtime.devices()

    def row_draw(self) -> RowDraw:
        return row_draw_of(self._runtime)

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        if not isinstance(self._runtime, PlanningRuntime):
            raise CapabilityError(f"the engine {self.name} cannot state a model's memory before it is loaded")
        return self._runtime.footprint(request)

    def open(self, request: ModelRequest) -> TimedModel:
        model = self._runtime.open(request)
        if isinstance(model, AdapterFileModel):
            return TimedAdapterFileModel(model)
        return TimedAdapterModel(model) if isinstance(model, AdapterModel) else TimedModel(model)


class TimedPair:
    """A pair on a TimedRuntime, and its timed models. `draft` is None without `with_draft` or a draft model.

    drafters: the drafters that will run, whose draft models are loaded now. A smaller head may need a separate copy of
    the draft model.
    """

    def __init__(self, pair: Pair, *, with_draft: bool, drafters: Sequence[str] = ()) -> None:
        if with_draft:
            sources = [source for name in drafters if (source := pair.drafter_source(name)).needs_model]
            for source in sorted(sources, key=lambda source: not source.needs):  # so that one copy may serve all
                pair.drafts.offering(source.needs)
        draft = pair.draft if with_draft else None
        assert isinstance(pair.target, TimedModel)
        assert draft is None or isinstance(draft, TimedModel)
        self.pair, self.target, self.draft = pair, pair.target, draft

    @property
    def drafts(self) -> list[TimedModel]:
        """Every copy of the draft model."""
        loaded = () if self.draft is None else self.pair.drafts.loaded
        return [model for model in loaded if isinstance(model, TimedModel)]

    def clear(self) -> None:
        """Discard the passes recorded so far."""
        for model in (self.target, *self.drafts):
            model.passes.clear()

    @property
    def draft_passes(self) -> list[Pass]:
        """The passes of all copies, in order of time."""
        return sorted(each for model in self.drafts for each in model.passes)
