"""A model over static graphs: one session for each width, and passes that are padded to the next width."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.model import AdapterUse, LowRank, ModelCard, Output, RowRequest, State
from edgedecode.errors import CapabilityError, EdgeDecodeError, RuntimeUnavailable
from edgedecode.memory.budget import Budget, Holder, Lease
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.static_graphs import MASK, WINDOW_MASK, head_rows

from ...row_state import LEAST_ROWS, check_tokens, wanted_rows
from ..graph_session import cache_names, check_allocated
from ..onnx_adapters import Adapters
from ..onnx_engine import Untyped, first_line
from ..onnx_footprint import FLOAT_NBYTES, Footprint
from ..providers.kv_cache import PAST, PRESENT
from ..session_model import SessionModel
from .static_passes import StaticPiece, split_static
from .static_state import Bound, StaticState, static_state_nbytes

INDEX_NBYTES = 8


def static_buffers(entry: ModelEntry, *, widths: Sequence[int], slots: int) -> Holder:
    """Return the memory of the inputs and outputs that all widths share."""
    widest = widths[-1]
    masks = (2 if entry.window else 1) * widest * (slots + widest)
    present = 2 * entry.layers * entry.kv_heads * entry.head_size * widest
    logits = max(map(head_rows, widths)) * entry.rows
    return Holder("buffers", FLOAT_NBYTES * (masks + present + logits) + INDEX_NBYTES * 3 * sum(widths))


def static_holders(
    entry: ModelEntry, card: ModelCard, slots: int, capacity: int, *, rows: int = 1, tree: bool = False
) -> tuple[Holder, ...]:
    """Return the memory of a model's first state. A tree needs no more than a chain."""
    return (
        Holder(f"kv:{card.name}", static_state_nbytes(entry, slots)),
        Holder(f"logits:{card.name}", (rows + LEAST_ROWS) * card.rows * FLOAT_NBYTES),
    )


class _Arrays:
    """Inputs and outputs of the passes. Every width uses the first part of the same memory."""

    def __init__(self, entry: ModelEntry, *, widths: Sequence[int], slots: int) -> None:
        widest = widths[-1]
        self._entry, self._slots = entry, slots
        self._masks = np.zeros((2 if entry.window else 1, widest * (slots + widest)), np.float32)
        self._present = np.zeros(2 * entry.layers * entry.kv_heads * entry.head_size * widest, np.float32)
        self._logits = np.zeros(max(map(head_rows, widths)) * entry.rows, np.float32)

    def masks(self, width: int) -> FloatArray:
        """Return the masks of full and of window layers, [1 or 2, width, slots + width]."""
        columns = self._slots + width
        return self._masks[:, : width * columns].reshape(-1, width, columns)

    def present(self, width: int) -> FloatArray:
        """Return the new keys and values, [2 · layers, 1, heads, width, size]."""
        entry = self._entry
        size = 2 * entry.layers * entry.kv_heads * width * entry.head_size
        return self._present[:size].reshape(2 * entry.layers, 1, entry.kv_heads, width, entry.head_size)

    def logits(self, width: int) -> FloatArray:
        count = head_rows(width)
        return self._logits[: count * self._entry.rows].reshape(count, self._entry.rows)


class _Width:
    """One session, and its inputs that have no other width's shape."""

    def __init__(self, engine: Untyped, session: Untyped, *, width: int, arrays: _Arrays, entry: ModelEntry) -> None:
        self.session, self.width = session, width
        self.ids: IntArray = np.zeros((1, width), np.int64)
        self.positions: IntArray = np.zeros((1, width), np.int64)
        self.picked: IntArray = np.zeros(head_rows(width), np.int64)
        self.masks, self.present, self.logits = arrays.masks(width), arrays.present(width), arrays.logits(width)
        self._layers = entry.layers
        names = {value.name for value in session.get_inputs()}
        value = engine.OrtValue.ortvalue_from_numpy
        made: dict[str, npt.NDArray[np.generic]] = {
            "input_ids": self.ids,
            "position_ids": self.positions,
            "rows": self.picked,
            MASK: self.masks[None, :1],
            WINDOW_MASK: self.masks[None, 1:],
        }
        self._inputs = {name: value(array) for name, array in made.items() if name in names}

    def binding(self, state: StaticState) -> Untyped:
        """Return a binding of this width's arrays and the state's cache."""
        binding = self.session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, past in zip(cache_names(PAST, self._layers), state.cache, strict=True):
            binding.bind_input(name, "cpu", 0, np.float32, past.shape, past.ctypes.data)
        for name, new in zip(cache_names(PRESENT, self._layers), self.present, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, new.shape, new.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, self.logits.shape, self.logits.ctypes.data)
        return binding


class StaticModel(SessionModel[StaticState]):
    """Implements `LanguageModel` over one open session per width, which it owns with the given `leases`.

    in_place: `Provider.in_place`; otherwise the inputs are bound again in every pass.
    """

    def __init__(  # noqa: PLR0913  (the parts of several open graphs)
        self,
        engine: Untyped,
        *,
        sessions: Mapping[int, Untyped],
        slots: int,
        entry: ModelEntry,
        card: ModelCard,
        footprint: Footprint,
        budget: Budget,
        leases: Sequence[Lease],
        in_place: bool,
    ) -> None:
        super().__init__(sessions, entry=entry, card=card, footprint=footprint, budget=budget, leases=leases)
        widths = sorted(sessions)
        with ExitStack() as undo:
            nbytes = static_buffers(entry, widths=widths, slots=slots).nbytes
            buffers = undo.enter_context(budget.reserve(f"buffers:{card.name}", nbytes))
            self._logits_lease = undo.enter_context(budget.reserve(f"logits:{card.name}", 0))
            arrays = _Arrays(entry, widths=widths, slots=slots)
            self._widths = {
                width: _Width(engine, sessions[width], width=width, arrays=arrays, entry=entry) for width in widths
            }
            self._adapters = Adapters(engine, sessions[widths[0]], entry=entry, card=card, budget=budget, fixed=True)
            undo.pop_all()
        self._leases += [buffers, self._logits_lease]
        self._slots, self._in_place = slots, in_place
        self._logits: FloatArray = np.empty((0, card.rows), np.float32)

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        if capacity > self._slots:
            raise CapabilityError(
                f"a context of {capacity} is too long: the {self._card.name}'s graphs were made for {self._slots} "
                f"positions (use --ctx-size {self._slots}, or make them again with a longer --context)"
            )

        def make(lease: Lease, held: int) -> StaticState:
            self._hold_logits(held)
            return StaticState(
                self._entry, slots=self._slots, capacity=capacity, lease=lease, owner=self, busy=self._lock
            )

        return self._new_state(capacity, static_state_nbytes(self._entry, self._slots), rows=rows, make=make)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        wanted = wanted_rows(rows, count=len(tokens))
        with self._lock:
            own = self._own(state, StaticState)
            check_tokens(tokens, self._card)
            tree = own.tree
            try:
                own.adapter = self._adapters.form(adapter)
                own.grow(len(tokens), parents=parents)
                logits = self._append(own, tokens, rows=wanted)
            except BaseException as error:
                own.tree = tree  # a chain stays a chain if its first tree is refused or interrupted
                if isinstance(error, (EdgeDecodeError, MemoryError)) or not isinstance(error, Exception):
                    raise
                check_allocated(error, f"a pass of {len(tokens)} rows of the {self._card.name}")
                message = f"ONNX Runtime failed in a pass of {len(tokens)} rows: {first_line(error)}"
                raise RuntimeUnavailable(message) from error
            own.commit(len(tokens))
        return Output(logits)

    def add_adapter(self, digest: str, matrices: Sequence[LowRank]) -> None:
        with self._lock:
            if self._session is None:
                raise CapabilityError(f"the model {self._card.name} is closed")
            self._unbind(self._adapters.forms(digest))
            self._adapters.add(digest, matrices)

    def prepare_adapter(self, use: AdapterUse) -> object:
        with self._lock:
            return self._adapters.form(use)

    def remove_adapter(self, digest: str, *, scale: float | None = None) -> None:
        with self._lock:
            self._unbind(self._adapters.forms(digest, scale=scale))
            if scale is None:
                self._adapters.remove(digest)

    def _drop(self) -> None:
        self._adapters.close()
        self._widths = {}
        self._logits = np.empty((0, self._card.rows), np.float32)

    def _shrink(self) -> None:
        with self._lock:
            count = max((state.rows for state in self._open_states()), default=0)
            if len(self._logits) > count:
                self._logits = np.empty((0, self._card.rows), np.float32)
                self._logits = np.empty((count, self._card.rows), np.float32)
                self._logits_lease.resize(self._logits.nbytes)

    def _append(self, state: StaticState, tokens: Sequence[int], *, rows: Sequence[int]) -> FloatArray:
        """Append `tokens` in one or several passes and return the logits of `rows`."""
        order = sorted(range(len(rows)), key=rows.__getitem__)
        ascending = [rows[index] for index in order]
        pieces = list(split_static(len(tokens), ascending, list(self._widths)))
        in_order = ascending == list(rows)
        if len(pieces) == 1 and in_order:
            return self._pass(state, tokens, pieces[0])
        logits, filled = self._hold_logits(len(rows)), 0
        for piece in pieces:
            found = self._pass(state, tokens[piece.start : piece.stop], piece)
            logits[filled : filled + len(found)] = found
            filled += len(found)
        logits = logits[: len(rows)]
        return logits if in_order else logits[np.argsort(order)]

    def _pass(self, state: StaticState, tokens: Sequence[int], piece: StaticPiece) -> FloatArray:
        """Run one pass and return a view of the logits of its rows."""
        at, count = self._widths[piece.width], len(tokens)
        start = state.pending + piece.start
        at.ids[0, :count], at.ids[0, count:] = tokens, 0
        at.positions[0, :count], at.positions[0, count:] = state.positions(start, start + count), 0
        at.picked[:] = 0
        at.picked[: len(piece.rows)] = piece.rows
        state.fill_mask(at.masks[0], start=start, count=count)
        if self._entry.window:
            at.masks[1] = at.masks[0]
            state.block_window(at.masks[1], start=start, count=count, window=self._entry.window)
        binding = self._binding(state, at)
        at.session.run_with_iobinding(binding)
        state.store(at.present, start=start, count=count)
        return at.logits[: len(piece.rows)]

    def _binding(self, state: StaticState, at: _Width) -> Untyped:
        """Return the state's binding of a width, with the matrices of its adapter."""
        assert state.binding is not None
        bound = state.binding.get(at.width)
        if bound is None or not self._in_place:
            bound = state.binding[at.width] = Bound(at.binding(state))
        if state.adapter is not None and bound.adapter is not state.adapter:
            bound.adapter = None  # after an interrupt, none counts as bound
            self._adapters.bind(bound.binding, state.adapter)
            bound.adapter = state.adapter
        return bound.binding

    def _unbind(self, forms: Collection[object]) -> None:
        """Forget the bindings that keep one of these adapters allocated."""
        for state in self._open_states():
            bindings = state.binding or {}
            for width in [width for width, bound in bindings.items() if any(form is bound.adapter for form in forms)]:
                del bindings[width]
            if any(form is state.adapter for form in forms):
                state.adapter = None

    def _hold_logits(self, count: int) -> FloatArray:
        """Return the array for the logits of several passes, of `count` rows or more. Raises BudgetExceeded."""
        if len(self._logits) < count:
            self._logits_lease.resize(count * self._card.rows * FLOAT_NBYTES)
            self._logits = np.empty((0, self._card.rows), np.float32)  # frees the old rows first
            self._logits = np.empty((count, self._card.rows), np.float32)
        return self._logits
