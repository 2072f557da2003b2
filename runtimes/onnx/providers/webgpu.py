"""Graphics processors through WebGPU (Vulkan, Metal, Direct3D 12): keys and values stay in the device's memory.

Its attention ignores the positions it is given and rotates each row by its slot, so a graph's rotation tables are
reordered by slot before attention reads them: for a tree's rows, the slot's table row is that of the row's position.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgedecode.errors import CapabilityError
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.pack.entries import STATIC
from edgedecode.pack.manifest import Graph, ModelEntry

from ..onnx_engine import SILENT, Untyped
from ..pass_inputs import POSITIONS
from .attention_check import SIZE, attention_graph, right_widths
from .kv_cache import CacheShape, DeviceCache, KvCache, NewCache, move_graph, uniform_shape
from .plugin import PluginProvider

_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
_ATTENTION = "GroupQueryAttention"
_TABLES, _POSITIONS_PLACE = (7, 8), 9
"""Attention's inputs: cosines and sines, and positions."""
_NO_ADAPTER = "Failed to get a WebGPU adapter"
"""The engine's words for a machine without a graphics driver; the device list does not tell."""
_INT64 = 7
_WIDTHS = (31, 64)
"""Its attention has another shader from 32 rows on, which is wrong on devices with groups of 8 threads."""


class WebGpuProvider(PluginProvider):
    """Runs base graphs as they are exported, trees included."""

    name = "webgpu"
    engine_name = "WebGpuExecutionProvider"
    description = "graphics processor through WebGPU"
    package = "onnxruntime_ep_webgpu"
    distribution = "onnxruntime-ep-webgpu"
    versions = ("0.4.",)
    variables = (_SOFTWARE, "VK_DRIVER_FILES", "VK_ICD_FILENAMES")
    environment = (
        f"it needs a graphics processor and its driver; for tests, {_SOFTWARE}=1 allows Vulkan in software (Mesa 25 or "
        "later)"
    )
    in_place = False

    def refusal(self, entry: ModelEntry, graph: Graph) -> str:
        if graph.kv_type != "float32":
            return f"its attention has no {graph.kv_type} keys and values: leave out --kv-type, or use --provider cpu"
        if "lora" in graph.capabilities:  # the engine cannot bind optional inputs on this device
            return "its graphs take no adapters: leave out --adapter, or use --provider cpu"
        if STATIC in graph.capabilities:
            return "it runs graphs of edgedecode's own export only: export the pack again, or use --provider cpu"
        return ""

    def rewritten(self, path: Path) -> bytes | None:
        file = GraphFile.parse(path.read_bytes())
        return file.serialize() if _rotate_by_slot(file, path) else None

    def new_caches(self, engine: Untyped, entry: ModelEntry) -> NewCache:
        mover = self._open(engine, move_graph(2 * entry.layers, heads=entry.kv_heads, size=entry.head_size))
        memory = self._memory(engine)

        def new_cache(caches: Sequence[CacheShape], *, slots: int, kv_type: str, tiled: bool) -> KvCache:
            assert (kv_type, tiled) == ("float32", False), "other graphs are refused; our kernels are the CPU's"
            return DeviceCache(engine, uniform_shape(caches, slots), memory=memory, mover=mover)

        return new_cache

    def try_out(self, engine: Untyped) -> int | None:
        try:
            mover = self._open(engine, move_graph(2, heads=1, size=SIZE))
        except Exception as error:  # the engine's exceptions share no base class
            if _NO_ADAPTER in str(error):
                return None
            raise
        cache = DeviceCache(engine, (2, 1, 1, _WIDTHS[-1], SIZE), memory=self._memory(engine), mover=mover)
        right = right_widths(self._open(engine, attention_graph()), cache, widths=_WIDTHS)
        before = cache.values[0].numpy()[0, 0]
        cache.move([2, 3], start=1)
        if not np.array_equal(cache.values[0].numpy()[0, 0, :4], before[[0, 2, 3, 3]]):
            raise CapabilityError("the graphics driver copies keys and values wrongly")
        return right if right < _WIDTHS[-1] else 0

    def _memory(self, engine: Untyped) -> Untyped:
        """Return the kind of memory in which the device allocates."""
        return self.engine_devices(engine)[0].memory_info(engine.OrtDeviceMemoryType.DEFAULT)

    def _open(self, engine: Untyped, data: bytes) -> Untyped:
        options = engine.SessionOptions()
        options.log_severity_level = SILENT
        session = engine.InferenceSession(data, options, **self.configure(options, engine))
        self.check(session, subject="a graph over keys and values")
        return session


def _rotate_by_slot(file: GraphFile, path: Path) -> bool:
    """Reorder the rotation tables by slot, with the positions of all used slots as input; False: nothing rotates."""
    rotating = [node for node in file.nodes if node.op_type == _ATTENTION and POSITIONS in node.inputs]
    if not rotating:
        return False
    if any(POSITIONS in node.inputs for node in file.nodes if node.op_type != _ATTENTION):
        raise CapabilityError(
            f"webgpu cannot run {path}: it reads positions besides those of its attention; use --provider cpu"
        )
    by_slot: dict[str, str] = {}
    for node in rotating:
        for place in _TABLES:
            node.inputs[place] = by_slot.setdefault(node.inputs[place], f"{node.inputs[place]}/by_slot")
        node.inputs[_POSITIONS_PLACE] = ""
    file.nodes[:0] = [
        Node("Gather", name=made, inputs=[table, POSITIONS], outputs=[made]) for table, made in by_slot.items()
    ]
    file.inputs[:] = [
        ValueInfo(POSITIONS, _INT64, ["T"]) if value.name == POSITIONS else value for value in file.inputs
    ]
    return True
