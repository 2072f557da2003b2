"""Where a state's keys and values are: in an array that the engine shares, or in a provider's own memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node

from ..onnx_engine import Untyped

KEY_TILE = 16
"""Slots per tile of keys, which our attention stores transposed."""
_FLOAT, _INT64 = 1, 7
_DIMENSIONS = 4
_SOURCES, _TARGETS = "sources", "targets"

KvShape = tuple[int, int, int, int, int]
"""Caches, 1, KV heads, slots, head size."""
PAST, PRESENT = "past_key_values.", "present."
"""Prefixes of the caches' names among a graph's inputs and outputs."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """One layer's keys, or its values: their name in the graph, and their sizes."""

    name: str
    heads: int
    size: int


def cache_shapes(inputs: Iterable[tuple[str, Sequence[int | str | None]]]) -> tuple[CacheShape, ...]:
    """Return the caches among a graph's inputs, given by name and shape [1, KV heads, slots, head size].

    Layers may differ in them, and layers without attention have none.
    """
    found = []
    for name, dims in inputs:
        if name.startswith(PAST) and len(dims) == _DIMENSIONS and isinstance(dims[1], int) and isinstance(dims[3], int):
            found.append(CacheShape(name.removeprefix(PAST), dims[1], dims[3]))
    return tuple(found)


def slot_count(capacity: int, *, tiled: bool) -> int:
    """Return how many slots a state of `capacity` rows has; tiled: for our attention."""
    return -(-capacity // KEY_TILE) * KEY_TILE if tiled else capacity


class KvCache(Protocol):
    """One sequence's keys and values: by layer, keys before values, of [1, KV heads, slots, head size] each.

    The engine reads the past from the used slots and writes the present into the following ones.
    """

    @property
    def values(self) -> Sequence[Untyped]:
        """The engine's values, each bound as past and as present."""

    def move(self, sources: Sequence[int], *, start: int) -> None:
        """Copy slots, in ascending order, to those from `start`."""

    def close(self) -> None:
        """Free the memory."""


class NewCache(Protocol):
    """Makes the keys and values of one state. tiled: for our attention."""

    def __call__(self, caches: Sequence[CacheShape], *, slots: int, kv_type: str, tiled: bool) -> KvCache: ...


def uniform_shape(caches: Sequence[CacheShape], slots: int) -> KvShape:
    """Return the shape of one array of all caches, which have the same sizes."""
    (sizes,) = {(each.heads, each.size) for each in caches}
    return len(caches), 1, sizes[0], slots, sizes[1]


class HostCache:
    """Implements `KvCache` in one array of the graph's KV type, of shape `KvShape`.

    tiled: our attention's layout, which stores keys in tiles of 16 slots, [slots / 16, head size, 16].
    """

    def __init__(self, engine: Untyped, shape: KvShape, *, kv_type: str, tiled: bool = False) -> None:
        self._tiled = tiled
        self.array: npt.NDArray[np.float32 | np.int8] = np.zeros(shape, kv_type)
        self.values: Sequence[Untyped] = [engine.OrtValue.ortvalue_from_numpy(part) for part in self.array]

    def by_slot(self) -> npt.NDArray[np.float32 | np.int8]:
        """Return a copy in the order of slots, [caches, KV heads, slots, head size]."""
        found = self.array[:, 0].copy()
        if self._tiled:
            _, heads, slots, size = found.shape
            tiles = found[0::2].reshape(-1, heads, slots // KEY_TILE, size, KEY_TILE)
            found[0::2] = tiles.swapaxes(-1, -2).reshape(-1, heads, slots, size)
        return found

    def move(self, sources: Sequence[int], *, start: int) -> None:
        wanted = np.asarray(sources, np.int64)
        if not self._tiled:
            self.array[:, :, :, start : start + len(wanted)] = self.array[:, :, :, wanted]
            return
        values, slots = self.array[1::2], np.arange(start, start + len(wanted))
        values[:, :, :, slots] = values[:, :, :, wanted]
        layers, _, heads, room, size = values.shape
        keys = self.array[0::2].reshape(layers, heads, room // KEY_TILE, size, KEY_TILE)
        assert np.shares_memory(keys, self.array)
        tiles, lanes = divmod(slots, KEY_TILE)
        from_tiles, from_lanes = divmod(wanted, KEY_TILE)
        keys[:, :, tiles, :, lanes] = keys[:, :, from_tiles, :, from_lanes]

    def close(self) -> None:
        self.values = ()
        self.array = np.zeros((0, 1, 1, 0, 1), np.float32)


class MixedCache:
    """Implements `KvCache` where layers differ in KV heads or head size: an array for each pair of them."""

    def __init__(self, engine: Untyped, caches: Sequence[CacheShape], *, slots: int, kv_type: str, tiled: bool) -> None:
        alike: dict[tuple[int, int], list[CacheShape]] = {}
        for each in caches:
            alike.setdefault((each.heads, each.size), []).append(each)
        self._parts = [
            HostCache(engine, uniform_shape(part, slots), kv_type=kv_type, tiled=tiled) for part in alike.values()
        ]
        rest = {sizes: iter(part.values) for sizes, part in zip(alike, self._parts, strict=True)}
        self.values: Sequence[Untyped] = [next(rest[each.heads, each.size]) for each in caches]

    def move(self, sources: Sequence[int], *, start: int) -> None:
        for part in self._parts:
            part.move(sources, start=start)

    def close(self) -> None:
        self.values = ()
        for part in self._parts:
            part.close()


def host_cache(engine: Untyped, caches: Sequence[CacheShape], *, slots: int, kv_type: str, tiled: bool) -> KvCache:
    """Return keys and values in arrays that the engine shares."""
    if not caches:  # of a drafter that reads its target's
        return HostCache(engine, (0, 1, 1, KEY_TILE, KEY_TILE), kv_type=kv_type, tiled=tiled)
    if len({(each.heads, each.size) for each in caches}) > 1:
        return MixedCache(engine, caches, slots=slots, kv_type=kv_type, tiled=tiled)
    return HostCache(engine, uniform_shape(caches, slots), kv_type=kv_type, tiled=tiled)


class DeviceCache:
    """Implements `KvCache` in a device's memory, as float32. mover: a session over `move_graph` on the same device."""

    def __init__(self, engine: Untyped, shape: KvShape, *, memory: Untyped, mover: Untyped) -> None:
        parts, batch, self._heads, slots, size = shape
        make = engine.OrtValue.ortvalue_from_shape_and_type
        self.values: Sequence[Untyped] = [
            make((batch, self._heads, slots, size), np.float32, memory_info=memory) for _ in range(parts)
        ]
        self._mover, self._binding = mover, mover.io_binding()
        for index, value in enumerate(self.values):
            self._binding.bind_ortvalue_input(f"past.{index}", value)
            self._binding.bind_ortvalue_output(f"present.{index}", value)

    def move(self, sources: Sequence[int], *, start: int) -> None:
        self._binding.bind_cpu_input(_SOURCES, self._places(sources))
        self._binding.bind_cpu_input(_TARGETS, self._places(range(start, start + len(sources))))
        self._mover.run_with_iobinding(self._binding)

    def close(self) -> None:
        self.values, self._binding = (), None

    def _places(self, slots: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the index of every head's slots, [heads · slots, 3]."""
        places = np.zeros((self._heads, len(slots), 3), np.int64)
        places[:, :, 1] = np.arange(self._heads)[:, None]
        places[:, :, 2] = np.asarray(slots, np.int64)
        return places.reshape(-1, 3)


def move_graph(parts: int, *, heads: int, size: int) -> bytes:
    """Return a graph that copies slots of `parts` caches: gathered first, then written to the same buffer.

    The engine writes in place where one buffer is bound as past and as present.
    """
    file = GraphFile(opset={"": 21}, model_rest=[(1, b"\x08\x0a")], graph_rest=[(2, b"\x12\x04move")])
    file.inputs = [ValueInfo(name, _INT64, ["N", 3]) for name in (_SOURCES, _TARGETS)]
    for index in range(parts):
        past, moved, present = f"past.{index}", f"moved.{index}", f"present.{index}"
        shape: Sequence[int | str] = [1, heads, "C", size]
        file.inputs.append(ValueInfo(past, _FLOAT, shape))
        file.outputs.append(ValueInfo(present, _FLOAT, shape))
        file.nodes.append(Node("GatherND", inputs=[past, _SOURCES], outputs=[moved]))
        file.nodes.append(Node("ScatterND", inputs=[past, _TARGETS, moved], outputs=[present]))
    return file.serialize()
