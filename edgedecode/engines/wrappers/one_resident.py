"""Memory mode: of several models only one is in memory at a time, the one that was used last.

An engine wrapped by `OneResident` opens models that load when they are used, and close when another one is used. Their
states keep the tokens and process them again after the model is reloaded. This is for models that alternate rarely:
entropy switching with one hand-over per answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from weakref import WeakSet

from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import AdapterUse, LanguageModel, ModelCard, Output, RowRequest, State
from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.footprint import total_nbytes
from edgedecode.memory.process_memory import release_pages

from ..interface import Device, ModelFootprint, ModelRequest, PlanningRuntime, Runtime, draft_engine

_UNSUPPORTED = {"trim", "hidden", "lora"}
"""Needs of `Runtime.open` that take more of a model than its own logits."""


class OneResident:
    """Implements `Runtime` and `PlanningRuntime` over an engine that can plan; its models are loaded one at a time."""

    def __init__(self, engine: Runtime) -> None:
        if not isinstance(engine, PlanningRuntime):
            raise CapabilityError(f"the engine {engine.name} cannot plan, so its models cannot take turns in memory")
        self._engine, self._planning = engine, engine
        self.loads = 0
        """How often a model was loaded."""
        self.seconds = 0.0
        """How long that took."""
        self._current: _Model | None = None

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def draft_name(self) -> str:
        return draft_engine(self._engine)

    @property
    def draft_place(self) -> str | None:
        return getattr(self._engine, "draft_place", None)

    def devices(self) -> Sequence[Device]:
        return self._engine.devices()

    def row_draw(self) -> object:
        """Return the engine's helper that draws tokens, or None."""
        make = getattr(self._engine, "row_draw", None)
        return None if make is None else make()

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        _check_needs(request)
        return self._planning.footprint(request)

    def open(self, request: ModelRequest) -> LanguageModel:
        """Return a model that is loaded when it is used. Raises the errors of `footprint`, and BudgetExceeded."""
        return _Model(self, request, self.footprint(request))

    def load(self, model: _Model, request: ModelRequest) -> LanguageModel:
        """Load a model in place of the one that is loaded."""
        self.unload()
        started = perf_counter()
        loaded = self._engine.open(request)
        self.loads += 1
        self.seconds += perf_counter() - started
        self._current = model
        return loaded

    @contextmanager
    def counted(self, stats: Stats) -> Iterator[None]:
        """Add the loads within the block to an answer's statistics."""
        loads, seconds = self.loads, self.seconds
        try:
            yield
        finally:
            stats.model_loads += self.loads - loads
            stats.load_seconds += self.seconds - seconds

    def unload(self) -> None:
        """Close the model that is loaded, if any, and give its memory back to the system."""
        if self._current is not None:
            self._current.unload()
            self._current = None
            release_pages()


class _Model:
    """Implements `LanguageModel`: known by its card, loaded when it is used."""

    def __init__(self, runtime: OneResident, request: ModelRequest, footprint: ModelFootprint) -> None:
        self._runtime, self._request, self._footprint = runtime, request, footprint
        self._loaded: LanguageModel | None = None
        self._states: WeakSet[_State] = WeakSet()
        self._closed = False
        self._check_fits(0)

    @property
    def card(self) -> ModelCard:
        return self._footprint.card if self._loaded is None else self._loaded.card

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        """Make a state, whose memory is allocated when it is used. Raises BudgetExceeded if it would not fit then."""
        if not 1 <= capacity <= self.card.context:
            raise InputError(f"a state of {capacity} positions is out of range: this model allows {self.card.context}")
        self._check_fits(total_nbytes(self._footprint.state(capacity, rows=rows, tree=tree)))
        state = _State(self, capacity, rows=rows, tree=tree)
        self._states.add(state)
        return state

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        if adapter is not None:
            raise CapabilityError("models that take turns in memory use no adapters: leave out --adapter")
        assert isinstance(state, _State)
        inner = state.loaded(self.loaded())
        output = self.loaded().forward(tokens, inner, parents=parents, rows=rows)
        state.append(tokens)
        return output

    def loaded(self) -> LanguageModel:
        """Return the engine's model; load it if necessary. Raises the errors of the engine's `open`."""
        if self._closed:
            raise InputError(f"the model {self._request.name} is closed")
        if self._loaded is None:
            self._loaded = self._runtime.load(self, self._request)
        return self._loaded

    def unload(self) -> None:
        """Close the engine's model and its states, whose tokens are kept."""
        for state in self._states:
            state.drop()
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.unload()

    def _check_fits(self, state_nbytes: int) -> None:
        """Raise BudgetExceeded if the model and a state do not fit next to what is leased without any model."""
        budget = self._request.budget
        if budget.limit_nbytes is None:
            return
        self._runtime.unload()
        nbytes = total_nbytes(self._footprint.loaded) + max(state_nbytes, self._footprint.loading_nbytes)
        budget.reserve(f"model:{self._request.name}", nbytes, fixed=not state_nbytes).release()


class _State:
    """Implements `State`: the settled tokens, and the engine's state while its model is loaded."""

    oldest_crop = 0

    def __init__(self, model: _Model, capacity: int, *, rows: int, tree: bool) -> None:
        self._model, self._rows, self._tree = model, rows, tree
        self.capacity = capacity
        self._tokens: list[int] = []
        self._pending: list[int] = []
        self._inner: State | None = None

    @property
    def length(self) -> int:
        return len(self._tokens)

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def nbytes(self) -> int:
        return 0 if self._inner is None else self._inner.nbytes

    def loaded(self, model: LanguageModel) -> State:
        """Return the engine's state, with all tokens processed. Pending rows of an unloaded model are lost."""
        if self._inner is None:
            inner = model.new_state(self.capacity, rows=self._rows, tree=self._tree)
            try:
                prefill(model, inner, self._tokens)
            except BaseException:  # interrupted: the next call starts over
                inner.close()
                raise
            self._inner = inner
        return self._inner

    def append(self, tokens: Sequence[int]) -> None:
        """Note tokens that were appended as pending rows."""
        self._pending += tokens

    def drop(self) -> None:
        """Close the engine's state and keep the tokens."""
        self._pending.clear()
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    def keep(self, path: Sequence[int]) -> None:
        if self._inner is not None:
            self._inner.keep(path)
        self._tokens += [self._pending[index] for index in path]
        self._pending.clear()

    def crop(self, length: int) -> None:
        if not 0 <= length <= len(self._tokens):
            raise CapabilityError(f"a state of {len(self._tokens)} positions cannot be cut to {length}")
        if self._inner is not None and length < self._inner.oldest_crop:
            self.drop()
        if self._inner is not None:
            self._inner.crop(length)
        del self._tokens[length:]
        self._pending.clear()

    def close(self) -> None:
        self.drop()
        self._tokens.clear()


def _check_needs(request: ModelRequest) -> None:
    if unsupported := sorted(_UNSUPPORTED & set(request.needs)):
        raise CapabilityError(
            f"models that take turns in memory offer no {', '.join(unsupported)}: leave out what needs it"
        )
