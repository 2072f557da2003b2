"""A model on ONNX Runtime: split rows to append into forward passes.

A pass's inputs and outputs are bound once and updated in place, where the provider shares host memory. Bound again are
the attention bias at every pass (its shape contains the total length), ids and positions when the width changes, logits
when their number or place changes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LowRank, ModelCard, Output, RowRequest, State
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, RuntimeUnavailable
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import ModelEntry

from ..row_state import LEAST_ROWS, check_tokens, wanted_rows
from .buffers import Buffers
from .graph_session import HIDDEN, SQUARES_OUTPUT, check_allocated
from .kernels.thread_choice import WIDTHS, chosen_threads
from .onnx_engine import Untyped, first_line
from .onnx_footprint import Footprint
from .onnx_state import OnnxState, state_nbytes
from .pass_inputs import POSITIONS, Outputs, PassInputs, TreePaths
from .providers.kv_cache import PAST, PRESENT, slot_count
from .providers.provider import Provider
from .session_model import SessionModel, split_rows

if TYPE_CHECKING:
    from .biases import Biases
    from .features import FeatureRows
    from .gguf.pass_values import PassValues
    from .kernels.serving import GivenTable
    from .onnx_adapters import Adapters


class OnnxModel(SessionModel[OnnxState]):
    """Implements `LanguageModel` over one open session.

    It owns the session and the given `leases`. tiles: the weights of our products, by graph input. tiled: the graph has
    our attention, whose keys are stored in tiles too. table: the embedding, for a drafting head. features: the outputs
    that it reads. values: what the graph of a GGUF file reads besides. shared: the caches that an assistant reads, by
    the names of its inputs.
    """

    def __init__(  # noqa: PLR0913  (the parts of one open graph)
        self,
        engine: Untyped,
        *,
        session: Untyped,
        provider: Provider,
        entry: ModelEntry,
        card: ModelCard,
        footprint: Footprint,
        budget: Budget,
        leases: Sequence[Lease],
        tiles: Mapping[str, npt.NDArray[np.uint8]],
        tiled: bool,
        use_threads: Callable[[int], None] | None,
        table: "GivenTable | None" = None,
        features: Sequence[str] = (),
        values: "PassValues | None" = None,
        shared: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(session, entry=entry, card=card, footprint=footprint, budget=budget, leases=leases)
        self._engine = engine
        self._use_threads = use_threads
        self.table, self._features, self._values, self._shared = table, tuple(features), values, shared or {}
        self._buffers = Buffers(
            engine, name=card.name, rows=card.rows, context=card.context, footprint=footprint, budget=budget
        )
        try:
            inputs = {value.name: value.shape for value in session.get_inputs()}
            self._tiled = tiled
            value = engine.OrtValue.ortvalue_from_numpy
            self._tiles = {name: value(array) for name, array in tiles.items()}
            self._biases = (
                TreePaths(engine) if tiled else _biases(self._buffers, inputs=list(inputs), window=entry.window)
            )
            by_slot = len(inputs[POSITIONS]) == 1
            outputs = Outputs(self._buffers, card=card)
            self._inputs = PassInputs(self._buffers, outputs, in_place=provider.in_place, by_slot=by_slot)
            self._new_cache = provider.new_caches(engine, entry)
            self._after = np.empty((0, entry.hidden_size), np.float32)
            self._hidden: list[FloatArray] | None = None
            """Those of the passes of a call that asks for them."""
            self._squares = {
                value.name.removeprefix(SQUARES_OUTPUT): (np.zeros(value.shape, np.float32), np.zeros(value.shape))
                for value in session.get_outputs()
                if value.name.startswith(SQUARES_OUTPUT)
            }
            """By tensor: the sums of a pass, and of all passes."""
            self._adapters = _adapters(engine, session, entry, card, budget)
        except BaseException:
            self._buffers.close()
            raise

    @property
    def squares(self) -> Mapping[str, npt.NDArray[np.float64]]:
        return {name: total for name, (_, total) in self._squares.items()}

    def choose_threads(self, kept: Path | None, *, otherwise: int) -> None:
        """Use the fastest number of threads, up to the card's, with our kernels: cached at `kept`, or measured now.

        otherwise: used if a state of these passes does not fit the budget. Closes the model if a pass fails.
        """
        most = self._card.threads or 1

        def run(threads: int) -> None:
            self._card = replace(self._card, threads=threads)
            for width in WIDTHS:
                self.forward([0] * width, state)
                state.crop(0)

        try:
            state = self.new_state(max(WIDTHS))
            try:
                threads = chosen_threads(run, most=most, kept=kept)
            finally:
                state.close()
        except BudgetExceeded:
            threads = otherwise
        except BaseException:
            self.close()
            raise
        self._card = replace(self._card, threads=threads)

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        def make(lease: Lease, held: int) -> OnnxState:
            self._buffers.hold_rows(held)
            self._biases.plan(capacity, tree=tree and self._card.tree)
            slots = slot_count(capacity, tiled=self._tiled)
            caches = self._footprint.caches
            cache = self._new_cache(caches, slots=slots, kv_type=self._card.kv_type, tiled=self._tiled)
            state = OnnxState(cache, capacity=capacity, lease=lease, owner=self, busy=self._lock)
            state.plans_tree, state.make_features = tree, self._make_features
            places = {each.name: place for place, each in enumerate(caches)}
            state.shared = {name: cache.values[places[each]] for name, each in self._shared.items()}
            if self._footprint.recurrent:
                from .recurrence import Recurrence  # late: few models have such layers

                state.recurrence = Recurrence(self._engine, self._footprint.recurrent, capacity=capacity)
            state.binding = self._bind(state)
            return state

        nbytes = state_nbytes(self._footprint, capacity, kv_type=self._card.kv_type, tiled=self._tiled)
        return self._new_state(capacity, nbytes, rows=rows, make=make)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        count = len(tokens)
        wanted = wanted_rows(rows, count=count)
        with self._lock:
            own = self._own(state, OnnxState)
            check_tokens(tokens, self._card)
            tree = own.tree
            try:
                self._bind_adapter(own, adapter)
                own.grow(count, parents=parents)
                output = self._append(own, tokens, rows=wanted)
            except BaseException:
                own.tree = tree  # a chain stays a chain if its first tree is refused or interrupted
                raise
            own.commit(count)
        return output

    def hidden_rows(self, tokens: Sequence[int], state: State, *, rows: RowRequest = "last") -> FloatArray:
        if not self._card.hidden:
            raise CapabilityError(f"the {self._card.name} was opened without its hidden states")
        with self._lock:
            self._hidden = []
            try:
                self.forward(tokens, state, rows=rows)
                return np.concatenate(self._hidden)
            finally:
                self._hidden = None

    def add_adapter(self, digest: str, matrices: Sequence[LowRank]) -> None:
        with self._lock:
            if self._session is None:
                raise CapabilityError(f"the model {self._card.name} is closed")
            if self._adapters is None and not matrices:
                return  # it changes nothing
            adapters = self._taking()
            self._unbind(adapters.forms(digest))
            adapters.add(digest, matrices)

    def prepare_adapter(self, use: AdapterUse) -> object:
        with self._lock:
            return self._taking().form(use)

    def remove_adapter(self, digest: str, *, scale: float | None = None) -> None:
        with self._lock:
            if self._adapters is None:
                return
            self._unbind(self._adapters.forms(digest, scale=scale))
            if scale is None:
                self._adapters.remove(digest)

    def _taking(self) -> "Adapters":
        """Return the adapters. Raises CapabilityError for a graph that takes none."""
        if self._adapters is None:
            raise CapabilityError(f"{self._card.name} has no adapter inputs: export it with --graphs base,lora")
        return self._adapters

    def _make_features(self, start: int) -> "FeatureRows":
        """Return where a state of this length keeps features."""
        from .features import PICKED_ROWS, FeatureRows, features_nbytes

        name, hidden = self._card.name, self._entry.hidden_size
        if not self._features:
            raise CapabilityError(
                f"the {name} has no outputs that a drafting head reads: `edgedecode devices -m PACK` says whether our "
                f"kernels run it; use --drafter suffix"
            )
        lease = self._budget.reserve(f"features:{name}", features_nbytes(len(self._features), hidden))
        picked = any(
            value.name in self._features and value.shape[1] == PICKED_ROWS for value in self._session.get_outputs()
        )
        return FeatureRows(self._features, hidden=hidden, start=start, lease=lease, picked=picked)

    def _drop(self) -> None:
        self._tiles.clear()
        self.table = None  # a part of the mapped weights
        self._buffers.close()
        if self._values is not None:
            self._values.close()
        if self._adapters is not None:
            self._adapters.close()

    def _shrink(self) -> None:
        with self._lock:
            states = self._open_states()
            rows = max((state.rows for state in states), default=0)
            self._buffers.shrink(rows, tree=any(state.plans_tree for state in states))

    def _append(self, state: OnnxState, tokens: Sequence[int], *, rows: Sequence[int]) -> Output:
        """Run the passes that append `tokens` and return the output of `rows`."""
        if state.tree is not None and not self._card.tree:
            raise CapabilityError(f"{self._card.name} has no tree attention: its graph reads chains only")
        try:
            if len(tokens) > self._rows_next(state, state.pending):
                return self._passes(state, tokens, rows=rows)
            self._buffers.hold_rows(max(len(rows), LEAST_ROWS))
            self._pass(state, tokens, start=state.pending, rows=rows)
        except (EdgeDecodeError, MemoryError):
            raise
        except Exception as error:  # the engine's exceptions share no base class
            check_allocated(error, f"a pass of {len(tokens)} rows of the {self._card.name}")
            message = f"ONNX Runtime failed in a pass of {len(tokens)} rows: {first_line(error)}"
            raise RuntimeUnavailable(message) from error
        return Output(self._buffers.logits[: len(rows)])

    def _bind(self, state: OnnxState) -> Untyped:
        """Bind the parts that never change: the cache, read as past and written as present, and the lengths."""
        binding = self._session.io_binding()
        for cache, value in zip(self._footprint.caches, state.cache.values, strict=True):
            binding.bind_ortvalue_input(PAST + cache.name, value)
            binding.bind_ortvalue_output(PRESENT + cache.name, value)
        if state.recurrence is not None:
            state.recurrence.bind_memory(binding)
        for name, tiles in self._tiles.items():
            binding.bind_ortvalue_input(name, tiles)
        for name, (sums, _) in self._squares.items():
            binding.bind_output(SQUARES_OUTPUT + name, "cpu", 0, np.float32, sums.shape, sums.ctypes.data)
        self._inputs.bind_lengths(binding)
        return binding

    def _passes(self, state: OnnxState, tokens: Sequence[int], *, rows: Sequence[int]) -> Output:
        """Append `tokens` in several passes and collect the rows from each."""
        order = sorted(range(len(rows)), key=rows.__getitem__)
        ascending = [rows[index] for index in order]
        self._buffers.hold_rows(len(rows) + LEAST_ROWS)
        pieces = split_rows(len(tokens), ascending, most=lambda row: self._rows_next(state, state.pending + row))
        for start, stop, here, filled in pieces:
            self._pass(state, tokens[start:stop], start=state.pending + start, rows=here, slot=filled)
        logits = self._buffers.logits[: len(rows)]
        return Output(logits if ascending == list(rows) else logits[np.argsort(order)])

    def _rows_next(self, state: OnnxState, start: int) -> int:
        """Return how many rows the pass from pending row `start` may have.

        Without a past, the engine's attention counts positions by slot, so a tree's first row needs its own pass.
        """
        total = state.length + start
        alone = total == 0 and state.tree is not None and not self._tiled
        most = 1 if alone else self._footprint.rows_after(total)
        if state.recurrence is None or state.tree is None:
            return most
        return state.recurrence.width(state.tree, start, most=most)

    def _pass(self, state: OnnxState, tokens: Sequence[int], *, start: int, rows: Sequence[int], slot: int = 0) -> None:
        """Run one pass over the pending rows from `start`; the logits of `rows` go to the buffer's rows from `slot`."""
        width = len(tokens)
        if len(rows) == 1 and width > 1 and not self._card.row_invariant:
            rows = (rows[0], rows[0])
        self._inputs.bind(state, tokens, start=start, rows=rows, slot=slot)
        self._biases.bind(state.binding, state, start=start, width=width)
        if self._values is not None:
            self._values.bind(state.binding, tokens, self._buffers.positions[:width])
        if state.features is not None:
            state.features.bind(state.binding, first=state.length + start, width=width, rows=rows)
        if self._card.hidden:  # in every pass: the binding keeps the last one's address
            here = np.empty((len(rows), self._entry.hidden_size), np.float32)
            state.binding.bind_output(HIDDEN, "cpu", 0, np.float32, here.shape, here.ctypes.data)
            self._after = here
            if self._hidden is not None:
                self._hidden.append(here)
        if self._use_threads is not None:
            self._use_threads(self._card.threads or 1)
        self._run(state, start=start, width=width)
        for sums, total in self._squares.values():
            total += sums

    def _run(self, state: OnnxState, *, start: int, width: int) -> None:
        memory, binding = state.recurrence, state.binding
        if memory is None:
            self._session.run_with_iobinding(binding)
            return
        memory.begin(binding, length=state.length, start=start, width=width, tree=state.tree)
        try:
            self._session.run_with_iobinding(binding)
        except BaseException:
            memory.fail()
            raise
        memory.commit(state.length)

    def _bind_adapter(self, state: OnnxState, use: AdapterUse | None) -> None:
        """Bind the adapter's matrices if others are bound now; the engine's defaults are those of the base model."""
        if self._adapters is None and use is None:
            return
        adapters = self._taking()
        form = adapters.form(use)
        if form is state.bound_adapter or (use is None and state.bound_adapter is None):
            return
        assert form is not None
        state.bound_adapter = ()  # after an interrupt, neither adapter counts as bound
        adapters.bind(state.binding, form)
        state.bound_adapter = form

    def _unbind(self, forms: Collection[object]) -> None:
        """Bind no adapter where one of these is bound, as the states keep what is bound."""
        for state in self._open_states():
            if any(form is state.bound_adapter for form in forms):
                self._bind_adapter(state, None)


def _biases(buffers: Buffers, *, inputs: Sequence[str], window: int) -> "Biases":
    """Return the bias inputs of the engine's attention; ours takes none."""
    from .biases import Biases

    return Biases(buffers, inputs=inputs, window=window)


def _adapters(
    engine: Untyped, session: Untyped, entry: ModelEntry, card: ModelCard, budget: Budget
) -> "Adapters | None":
    """Return the adapters of the graph `lora`; None: the graph takes none."""
    if not card.lora_rank:
        return None
    from .onnx_adapters import Adapters

    return Adapters(engine, session, entry=entry, card=card, budget=budget)
