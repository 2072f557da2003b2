"""The adapters a model holds, as the values its graph takes: two matrices a product. Knows no files and no passes.

The engine's own adapter support is ignored by passes that run on a binding, so the matrices are bound as inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.errors import CapabilityError, InputError
from edgedecode.manifest import STACKS, ModelEntry
from edgedecode.memory import Budget, Lease
from edgedecode.types import AdapterUse, FloatArray, LowRank, ModelCard

from .footprint import FLOAT_NBYTES
from .graph import Untyped

__all__ = ["Adapters"]


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of the graph that takes a delta: inputs `lora.L.M.a` [inputs, r] and `lora.L.M.b` [r, outputs]."""

    layer: int
    module: str
    inputs: int
    outputs: int

    @property
    def name(self) -> str:
        return f"lora.{self.layer}.{self.module}"


@dataclass(frozen=True, slots=True)
class _Matrices:
    """What a product's two inputs get."""

    first: FloatArray
    second: FloatArray

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.second.nbytes


class _Adapter:
    """One adapter's matrices by product, and a copy of the second ones for the newest scale that is not 1."""

    def __init__(self, matrices: Mapping[str, _Matrices], lease: Lease) -> None:
        self._matrices = matrices
        self._lease = lease
        self._scaled = matrices
        self._scale = 1.0

    def at(self, scale: float) -> Mapping[str, _Matrices]:
        """Return the matrices with `scale` in the second ones. Raises BudgetExceeded before a copy is made."""
        if scale != self._scale:
            self._scaled, self._scale = self._matrices, 1.0
            held = sum(pair.nbytes for pair in self._matrices.values())
            if scale == 1.0:
                self._lease.resize(held)
            else:
                self._lease.resize(held + sum(pair.second.nbytes for pair in self._matrices.values()))
                self._scaled = {
                    name: _Matrices(pair.first, pair.second * np.float32(scale))
                    for name, pair in self._matrices.items()
                }
                self._scale = scale
        return self._scaled

    def close(self) -> None:
        self._lease.release()


class Adapters:
    """What `AdapterModel` says, for one graph; binds an adapter's matrices to the passes of a state."""

    def __init__(
        self, engine: Untyped, session: Untyped, *, entry: ModelEntry, card: ModelCard, budget: Budget
    ) -> None:
        self._value = engine.OrtValue.ortvalue_from_numpy
        self._card, self._budget = card, budget
        self._kv_width = entry.kv_heads * entry.head_size
        self._products = list(_products(session)) if card.lora_rank else []
        self._held: dict[str, _Adapter] = {}
        self._none = {
            product.name: _Matrices(
                np.empty((product.inputs, 0), np.float32), np.empty((0, product.outputs), np.float32)
            )
            for product in self._products
        }

    def add(self, digest: str, matrices: Sequence[LowRank], *, scale: float) -> None:
        """Hold an adapter, as `AdapterModel.add_adapter` says."""
        parts = self._by_product(matrices)
        nbytes = sum(
            FLOAT_NBYTES * sum(part.rank for part in parts[product.name]) * (product.inputs + product.outputs)
            for product in self._products
        )
        self.remove(digest)
        lease = self._budget.reserve(f"adapter:{self._card.name}:{digest[:12]}", nbytes)
        try:
            made = {product.name: self._joined(product, parts[product.name], scale) for product in self._products}
        except BaseException:
            lease.release()
            raise
        self._held[digest] = _Adapter(made, lease)

    def remove(self, digest: str) -> None:
        """Forget an adapter."""
        if (adapter := self._held.pop(digest, None)) is not None:
            adapter.close()

    def close(self) -> None:
        """Forget every adapter."""
        for digest in list(self._held):
            self.remove(digest)

    def matrices(self, use: AdapterUse | None) -> Mapping[str, _Matrices] | None:
        """Return what a pass with this adapter binds; None: nothing, as for a graph that takes no adapters.

        Raises CapabilityError for an adapter that is not held.
        """
        if use is None:
            return self._none or None
        if not self._card.lora_rank:
            raise CapabilityError(f"{self._card.name} has no adapter inputs: {use.name!r} cannot be applied")
        if use.digest not in self._held:
            raise CapabilityError(f"{self._card.name} holds no adapter {use.name!r}: add it before it is used")
        return self._held[use.digest].at(use.scale)

    def bind(self, binding: Untyped, matrices: Mapping[str, _Matrices]) -> None:
        """Bind matrices, whose memory the engine's values share."""
        for name, pair in matrices.items():
            binding.bind_ortvalue_input(f"{name}.a", self._value(pair.first))
            binding.bind_ortvalue_input(f"{name}.b", self._value(pair.second))

    def _by_product(self, matrices: Sequence[LowRank]) -> Mapping[str, list[LowRank]]:
        """Sort an adapter's parts to the products they change. Raises CapabilityError and InputError."""
        found: dict[str, list[LowRank]] = {product.name: [] for product in self._products}
        for whole in matrices:
            if whole.rank > self._card.lora_rank and self._products:
                raise CapabilityError(
                    f"an adapter of rank {whole.rank} does not fit {self._card.name}, which takes rank "
                    f"{self._card.lora_rank}: export the pack again with --lora-rank {whole.rank}"
                )
            for product in self._products_of(whole):
                part = self._piece(product, whole)
                self._check_sizes(product, part)
                found[product.name].append(part)
        return found

    def _products_of(self, part: LowRank) -> Sequence[_Product]:
        """Return the product that is the part's projection or holds it, or those that its projection is made of."""
        here = {product.module: product for product in self._products if product.layer == part.layer}
        if part.module in self._card.lora_modules:
            for name in (part.module, *(stack for stack, parts in STACKS.items() if part.module in parts)):
                if name in here:
                    return (here[name],)
            names = STACKS.get(part.module, ())
            if names and here.keys() >= set(names):
                return [here[name] for name in names]
        known = ", ".join(self._card.lora_modules) or "none"
        raise CapabilityError(
            f"{self._card.name} takes no adapter for layer {part.layer} {part.module}; it takes: {known} (export the "
            f"pack again with --lora-modules)"
        )

    def _piece(self, product: _Product, part: LowRank) -> LowRank:
        """Return what of the part is the product's: all of it, unless the part's projection is several products."""
        names = STACKS.get(part.module, ())
        if product.module not in names:
            return part
        widths = {other.module: other.outputs for other in self._products if other.layer == part.layer}
        start = sum(widths[name] for name in names[: names.index(product.module)])
        # The last takes what is left, so that matrices of a wrong size are noticed.
        stop = len(part.up) if product.module == names[-1] else start + product.outputs
        return LowRank(part.layer, product.module, part.down, part.up[start:stop])

    def _check_sizes(self, product: _Product, part: LowRank) -> None:
        place = self._place(product, part)
        wanted = (product.inputs, place.stop - place.start)
        if (part.down.shape[1], len(part.up)) != wanted or part.up.shape[1] != part.rank:
            raise InputError(
                f"layer {part.layer} {part.module}: matrices {part.down.shape} and {part.up.shape} do not fit a "
                f"projection of {wanted[0]} inputs and {wanted[1]} outputs: the adapter is of another model"
            )

    def _joined(self, product: _Product, parts: Sequence[LowRank], scale: float) -> _Matrices:
        """Put the parts of one product side by side, each one's outputs in its own place."""
        rank = sum(part.rank for part in parts)
        second = np.zeros((rank, product.outputs), np.float32)
        first = np.empty((product.inputs, rank), np.float32)
        start = 0
        for part in parts:
            rows = slice(start, start + part.rank)
            first[:, rows] = part.down.T
            np.multiply(part.up.T, np.float32(scale), out=second[rows, self._place(product, part)])
            start += part.rank
        return _Matrices(first, second)

    def _place(self, product: _Product, part: LowRank) -> slice:
        """Return which outputs of the product are the part's."""
        if product.module == part.module:
            return slice(0, product.outputs)
        outputs, cache = product.outputs, self._kv_width
        ends = [outputs - 2 * cache, outputs - cache] if product.module == "qkv_proj" else [outputs // 2]
        index = STACKS[product.module].index(part.module)
        return slice([0, *ends][index], [*ends, outputs][index])


def _products(session: Untyped) -> Iterator[_Product]:
    """Read from the graph's optional inputs which products take a delta."""
    shapes = {value.name: value.shape for value in session.get_overridable_initializers()}
    for name, shape in shapes.items():
        if name.startswith("lora.") and name.endswith(".a"):
            _, layer, module, _ = name.split(".")
            yield _Product(int(layer), module, inputs=shape[0], outputs=shapes[f"{name[:-1]}b"][1])
