"""The adapters that a model holds in the engine's memory.

The engine reads adapters from files only. Matrices are therefore written to a temporary file, which is deleted once
they are loaded.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from edgedecode.adapters.adapter_parts import Parts, Projections
from edgedecode.adapters.gguf_adapter import file_order, lora_projections
from edgedecode.decoding.model import AdapterUse, LowRank, ModelCard
from edgedecode.errors import CapabilityError, InputError
from edgedecode.gguf.adapter import check_adapter
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.encoding import F32, WrittenTensor, write_gguf
from edgedecode.gguf.gguf_names import LayerModule, tensor_name
from edgedecode.gguf.header import Header
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import ModelEntry

from .files.scratch import scratch_file
from .llama_context import AppliedAdapter, Context
from .llama_engine import Weights
from .llama_footprint import adapter_work_nbytes

TENSOR_NBYTES = 4096
"""Overhead of an adapter tensor in the engine, without its values (measured: 1.8 KB)."""


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A loaded adapter: address, largest rank, number and widest side of the products it changes, lease."""

    native: int
    rank: int
    products: int
    widest: int
    lease: Lease


class Adapters:
    """The part of `AdapterModel` that loads, applies and removes adapters of loaded weights."""

    def __init__(self, weights: Weights, *, entry: ModelEntry, header: Header, card: ModelCard, budget: Budget) -> None:
        self._weights, self._header, self._card, self._budget = weights, header, card, budget
        self._projections = Projections(
            list(lora_projections(header)),
            name=card.name,
            rank=card.lora_rank,
            modules=card.lora_modules,
            kv_width=entry.kv_heads * entry.head_size,
            hint="the adapter belongs to another model",
        )
        self._held: dict[str, _Adapter] = {}

    def add(self, digest: str, matrices: Sequence[LowRank], *, users: Iterable[Context]) -> None:
        """Load an adapter as in `AdapterModel.add_adapter`. users: contexts that may use an earlier one."""
        if not self._card.lora_modules:
            raise CapabilityError(
                f"{self._card.name} ({self._header.architecture}) cannot use PEFT adapters: convert it with "
                f"convert_lora_to_gguf"
            )
        changed = [parts for parts in self._projections.sort(matrices) if parts.parts]
        self.remove(digest, users=users)
        if not changed:
            raise InputError(f"the adapter {digest[:12]} changes nothing: it holds no matrices")
        lease = self._lease(digest, sum(parts.nbytes for parts in changed), tensors=2 * len(changed))
        try:
            tensors = [tensor for parts in changed for tensor in self._file_tensors(parts)]
            native = self._load(tensors)
        except BaseException:
            lease.release()
            raise
        rank = max(parts.rank for parts in changed)
        widest = max(max(parts.projection.inputs, parts.projection.outputs) for parts in changed)
        self._held[digest] = _Adapter(native, rank=rank, products=len(changed), widest=widest, lease=lease)

    def add_file(self, digest: str, path: Path, *, users: Iterable[Context]) -> None:
        """Load the GGUF adapter at `path`."""
        file = check_adapter(read_contents(path), path, self._header, name=self._card.name)
        self.remove(digest, users=users)
        lease = self._lease(digest, file.nbytes, tensors=2 * len(file.ranks))
        try:
            native = self._weights.load_adapter(path)
        except BaseException:
            lease.release()
            raise
        widest = max(max(self._header.tensors[name].shape) for name in file.ranks)
        self._held[digest] = _Adapter(native, rank=file.rank, products=len(file.ranks), widest=widest, lease=lease)

    def remove(self, digest: str, *, users: Iterable[Context]) -> None:
        """Take an adapter off every context and free it."""
        adapter = self._held.pop(digest, None)
        if adapter is None:
            return
        for context in users:
            context.drop(adapter.native)
        self._weights.free_adapter(adapter.native)
        adapter.lease.release()

    def close(self) -> None:
        """Free every adapter, after the contexts are closed and before the weights are."""
        for digest in list(self._held):
            self.remove(digest, users=())

    def applied(self, use: AdapterUse | None, *, rows: int) -> AppliedAdapter | None:
        """Return the adapter to apply in passes of at most `rows` rows. Raises CapabilityError, InputError."""
        if use is None:
            return None
        adapter = self._held.get(use.digest)
        if adapter is None:
            raise CapabilityError(f"{self._card.name} holds no adapter {use.name!r}: add it before using it")
        if not isfinite(use.scale):
            raise InputError(f"an adapter's scale must be a finite number, not {use.scale}")
        work = adapter_work_nbytes(rows, widest=adapter.widest, rank=adapter.rank, products=adapter.products)
        return AppliedAdapter(adapter.native, use.scale, work) if use.scale else None

    def _lease(self, digest: str, nbytes: int, *, tensors: int) -> Lease:
        return self._budget.reserve(f"adapter:{self._card.name}:{digest[:12]}", nbytes + TENSOR_NBYTES * tensors)

    def _load(self, tensors: Sequence[WrittenTensor]) -> int:
        """Write the tensors to a temporary file and load it. It has no alpha, as the matrices have their scale."""
        architecture = self._header.architecture
        fields = {"general.architecture": architecture, "general.type": "adapter", "adapter.type": "lora"}
        with scratch_file("adapter.gguf") as path:
            with path.open("wb") as file:
                write_gguf(file, fields, tensors)
            return self._weights.load_adapter(path)

    def _file_tensors(self, parts: Parts) -> Iterator[WrittenTensor]:
        """Yield a projection's two tensors. Their values are assembled only when they are written."""
        projection = parts.projection
        module = LayerModule(projection.layer, projection.module)
        name = tensor_name(module, self._header.architecture, self._header.tensors)

        def down() -> Iterator[memoryview]:
            yield self._projections.join(parts).down.data.cast("B")

        def up() -> Iterator[memoryview]:
            part, header = self._projections.join(parts), self._header
            kv_width = header.kv_heads * header.head_size
            ordered = file_order(
                part.up, part.module, header.architecture, head_size=header.head_size, kv_width=kv_width
            )
            yield ordered.data.cast("B")

        yield WrittenTensor(f"{name}.lora_a", (projection.inputs, parts.rank), F32, down)
        yield WrittenTensor(f"{name}.lora_b", (parts.rank, projection.outputs), F32, up)
