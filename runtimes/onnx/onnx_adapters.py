"""The adapters of a model as inputs of its graph: two matrices per product.

The engine's own adapter support is ignored by passes that run on a binding, so the matrices are bound as inputs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt

from edgedecode.adapters.adapter_parts import (
    FLOAT_NBYTES,
    LARGER,
    MAKING,
    Parts,
    Projection,
    Projections,
    graph_projections,
)
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LowRank, ModelCard
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import ModelEntry

from .graph_choice import is_gguf
from .graph_session import ADAPTER_INPUT
from .kernels.joins import TILE
from .onnx_engine import Untyped

Value = Callable[[npt.NDArray[np.generic]], Untyped]
"""Returns the engine's value over an array, whose memory it shares."""


class _Matrices:
    """What a product's two inputs get."""

    __slots__ = ("first", "nbytes", "second", "values")

    def __init__(self, first: npt.NDArray[np.generic], second: npt.NDArray[np.generic], *, value: Value) -> None:
        self.first, self.second = first, second
        self.values = value(first), value(second)
        self.nbytes = first.nbytes + second.nbytes


class Form:
    """An adapter's matrices by product, at one scale; or those of no adapter."""

    __slots__ = ("__weakref__", "matrices")

    def __init__(self, matrices: Mapping[str, _Matrices]) -> None:
        self.matrices = matrices


class _Adapter:
    """One adapter, with a copy of its second matrices for each other scale that is in use.

    A copy exists, with its lease, as long as a state has it bound or somebody else refers to it.
    """

    def __init__(self, form: Form, lease: Lease, *, value: Value, budget: Budget) -> None:
        self._form, self._value = form, value
        self._lease, self._budget = lease, budget
        self._scaled: WeakValueDictionary[float, Form] = WeakValueDictionary()

    def at(self, scale: float) -> Form:
        """Return the matrices with `scale` in the second ones. Raises BudgetExceeded before a copy is made."""
        with np.errstate(over="ignore"):
            scale = float(np.float32(scale))
        if scale == 1.0:
            return self._form
        if (found := self._scaled.get(scale)) is not None:
            return found
        pairs = self._form.matrices
        with ExitStack() as undo:
            sizes = [FLOAT_NBYTES * _size(pair.second) for pair in pairs.values()]
            most = sum(sizes) + MAKING * max(sizes)
            lease = undo.enter_context(self._budget.reserve(f"{self._lease.name}:{scale:g}", most))
            made = Form({name: self._scaled_pair(pair, scale) for name, pair in pairs.items()})
            lease.resize(sum(pair.second.nbytes for pair in made.matrices.values()))
            finalize(made, lease.release)
            undo.pop_all()
        self._scaled[scale] = made
        return made

    def forms(self, scale: float | None) -> list[Form]:
        """Return the copy for a scale, if there is one; None: all of them, and the matrices as they are."""
        if scale is None:
            return [self._form, *self._scaled.values()]
        with np.errstate(over="ignore"):
            found = self._scaled.get(float(np.float32(scale)))
        return [] if found is None else [found]

    def close(self) -> None:
        self._lease.release()

    def _scaled_pair(self, pair: _Matrices, scale: float) -> _Matrices:
        return _Matrices(pair.first, _scaled(pair.second, scale), value=self._value)


class AdapterLayout:
    """The products of a graph that take an adapter, and their matrices as the graph's inputs take them.

    shapes: of the graph's optional inputs, or of all of them. as_bytes: those of our own operator, which are float16
    where that is exact, float32 otherwise. fixed: as in `Adapters`.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        as_bytes: Collection[str],
        *,
        entry: ModelEntry,
        card: ModelCard,
        fixed: bool = False,
    ) -> None:
        self._entry, self._card, self._fixed, self._as_bytes = entry, card, fixed, as_bytes
        shapes = {name: shape for name, shape in shapes.items() if name.startswith(ADAPTER_INPUT)}
        self._ranks = {name.removesuffix(".a"): shape[1] for name, shape in shapes.items() if name.endswith(".a")}
        self.products = list(graph_projections(shapes)) if card.lora_rank else []
        self.projections = Projections(
            self.products,
            name=card.name,
            rank=card.lora_rank,
            modules=card.lora_modules,
            kv_width=entry.kv_heads * entry.head_size,
            hint="the adapter is for another model",
            larger="use --runtime llama" if is_gguf(entry) else LARGER,
        )

    def pair_nbytes(self, product: Projection) -> int:
        """Return the bytes of a product's matrices of the fixed rank; 0 without one."""
        rank = self._ranks[adapter_input(product)] if self._fixed else 0
        return FLOAT_NBYTES * rank * (product.inputs + product.outputs)

    def made(self, parts: Parts) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
        """Return the two matrices as the graph's product takes them."""
        if f"{adapter_input(parts.projection)}.a" not in self._as_bytes:
            joined = self.projections.join(parts)
            if self._fixed:
                joined = _filled(joined, self._ranks[adapter_input(parts.projection)], name=self._card.name)
            return _transposed(joined.down), _transposed(self._ordered(joined))
        stacked = self.projections.stack(parts)
        return _to_bytes(_transposed(stacked.down)), _to_bytes(_tiled(self._ordered(stacked)))

    def _ordered(self, change: LowRank) -> FloatArray:
        """Return the second matrix with its rows in the order of the graph's product."""
        entry = self._entry
        if not is_gguf(entry):
            return change.up
        from edgedecode.adapters.gguf_adapter import file_order
        from edgedecode.gguf.gguf_names import gguf_name

        architecture = gguf_name(entry.architecture)
        assert architecture is not None  # of a graph
        kv_width = entry.kv_heads * entry.head_size
        return file_order(change.up, change.module, architecture, head_size=entry.head_size, kv_width=kv_width)


class Adapters:
    """What `AdapterModel` says, for one graph; binds an adapter's matrices to the passes of a state.

    fixed: the graph takes matrices of one rank, which smaller ones are filled up to with zeros; else of any rank, with
    none by default.
    """

    def __init__(
        self,
        engine: Untyped,
        session: Untyped,
        *,
        entry: ModelEntry,
        card: ModelCard,
        budget: Budget,
        fixed: bool = False,
    ) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._card, self._budget = card, budget
        inputs = session.get_inputs() if fixed else session.get_overridable_initializers()
        shapes = {each.name: each.shape for each in inputs}
        as_bytes = {each.name for each in inputs if each.type == "tensor(uint8)"}
        self._layout = AdapterLayout(shapes, as_bytes, entry=entry, card=card, fixed=fixed)
        self._held: dict[str, _Adapter] = {}
        self._zeros = budget.reserve(f"adapter inputs:{card.name}", self.fixed_nbytes) if self.fixed_nbytes else None
        none = {adapter_input(product): self._made(Parts(product, ())) for product in self._layout.products}
        self._none = Form(none) if none else None

    @property
    def fixed_nbytes(self) -> int:
        """Bytes of one adapter's matrices, and of those of no adapter, in a graph that takes one rank."""
        return sum(map(self._layout.pair_nbytes, self._layout.products))

    def add(self, digest: str, matrices: Sequence[LowRank]) -> None:
        """Hold an adapter, as `AdapterModel.add_adapter` says."""
        projections = self._layout.projections
        sorted_parts = projections.sort(matrices)
        self.remove(digest)
        lease = self._budget.reserve(f"adapter:{self._card.name}:{digest[:12]}", 0)
        try:
            made, held = dict[str, _Matrices](), 0
            for parts in sorted_parts:
                most = max(projections.most_nbytes(parts), self._layout.pair_nbytes(parts.projection))
                lease.resize(held + (1 + MAKING) * most)
                pair = self._made(parts)
                made[adapter_input(parts.projection)] = pair
                held += pair.nbytes
            lease.resize(held)
        except BaseException:
            lease.release()
            raise
        self._held[digest] = _Adapter(Form(made), lease, value=self._value, budget=self._budget)

    def remove(self, digest: str) -> None:
        """Forget an adapter."""
        if (adapter := self._held.pop(digest, None)) is not None:
            adapter.close()

    def close(self) -> None:
        """Forget every adapter."""
        for digest in list(self._held):
            self.remove(digest)
        if self._zeros is not None:
            self._zeros.release()

    def forms(self, digest: str, *, scale: float | None = None) -> list[Form]:
        """Return what passes may have bound of an adapter, which need not be held; scale: only for this one."""
        return self._held[digest].forms(scale) if digest in self._held else []

    def form(self, use: AdapterUse | None) -> Form | None:
        """Return what a pass with this adapter binds; None: nothing, as for a graph that takes no adapters.

        Raises CapabilityError for an adapter that is not held, InputError for a scale that its values do not allow,
        BudgetExceeded.
        """
        if use is None:
            return self._none
        if not self._card.lora_rank:
            raise CapabilityError(f"{self._card.name} has no adapter inputs: {use.name!r} cannot be applied")
        if use.digest not in self._held:
            raise CapabilityError(f"{self._card.name} holds no adapter {use.name!r}: add it before it is used")
        return self._held[use.digest].at(use.scale)

    def bind(self, binding: Untyped, form: Form) -> None:
        """Bind matrices to the graph's inputs."""
        for name, pair in form.matrices.items():
            first, second = pair.values
            binding.bind_ortvalue_input(f"{name}.a", first)
            binding.bind_ortvalue_input(f"{name}.b", second)

    def _made(self, parts: Parts) -> _Matrices:
        return _Matrices(*self._layout.made(parts), value=self._value)


def _filled(change: LowRank, rank: int, *, name: str) -> LowRank:
    """Return the same change with zeros up to this rank. Raises CapabilityError if it has a higher one."""
    more = rank - change.rank
    if more < 0:
        raise CapabilityError(
            f"an adapter of rank {change.rank} in {change.module} does not fit {name}, whose graphs of fixed shape "
            f"take {rank}: export the pack again with --lora-rank {change.rank}, and make these graphs again"
        )
    down, up = np.pad(change.down, ((0, more), (0, 0))), np.pad(change.up, ((0, 0), (0, more)))
    return LowRank(change.layer, change.module, down, up)


def _to_bytes(values: FloatArray) -> npt.NDArray[np.uint8]:
    """Return [.., .., 2] or [.., .., 4] bytes of a matrix: float16 where every value is exactly one, else float32."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    exact: npt.NDArray[np.generic] = half if np.array_equal(half, values) else values
    return exact.view(np.uint8).reshape(*values.shape, exact.itemsize)


def _tiled(up: FloatArray) -> FloatArray:
    """Return [rank, outputs] of [outputs, rank], in memory [outputs / 32, rank, 32]: the order the product reads."""
    outputs, rank = up.shape
    return np.ascontiguousarray(up.reshape(outputs // TILE, TILE, rank).transpose(0, 2, 1)).reshape(rank, outputs)


def _floats(matrix: npt.NDArray[np.generic]) -> FloatArray:
    """Return a matrix as float32, whatever its form."""
    if matrix.dtype != np.uint8:
        return matrix.astype(np.float32, copy=False)
    found = matrix.view(np.float16 if matrix.shape[-1] == 2 else np.float32)
    return found.reshape(matrix.shape[:-1]).astype(np.float32)


def _scaled(matrix: npt.NDArray[np.generic], scale: float) -> npt.NDArray[np.generic]:
    with np.errstate(over="ignore", invalid="ignore"):
        values = _floats(matrix) * np.float32(scale)
    if not np.isfinite(values).all():
        raise InputError(f"an adapter's scale must be a finite number that its values allow, not {scale}")
    return _to_bytes(values) if matrix.dtype == np.uint8 else values


def _size(matrix: npt.NDArray[np.generic]) -> int:
    return matrix.nbytes // (matrix.shape[-1] if matrix.dtype == np.uint8 else matrix.itemsize)


def adapter_input(projection: Projection) -> str:
    """Return the inputs of a product's matrices, without `.a` and `.b`."""
    return f"lora.{projection.layer}.{projection.module}"


def _transposed(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values.T)
