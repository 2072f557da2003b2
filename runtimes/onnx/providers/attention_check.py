"""Checks a device's attention against numpy: drivers were found on which one of an engine's shaders is wrong."""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node

from ..onnx_engine import Untyped
from .kv_cache import KvCache

SIZE = 16
"""Head size, for one head."""
TOLERANCE = 1e-3
_FLOAT, _INT32 = 1, 6
_DOMAIN = "com.microsoft"


def attention_graph() -> bytes:
    """Return a graph of one attention node as base graphs have it, without rotation."""
    rows: Sequence[int | str] = [1, "S", SIZE]
    slots: Sequence[int | str] = [1, 1, "C", SIZE]
    inputs = {"query": rows, "key": rows, "value": rows, "past.0": slots, "past.1": slots}
    names = [*inputs, "seqlens_k", "total_length", "", "", "", "attention_bias"]
    node = Node("GroupQueryAttention", _DOMAIN, "attention", names, ["mixed", "present.0", "present.1"])
    node.attributes = {"num_heads": 1, "kv_num_heads": 1}
    file = GraphFile([node], opset={"": 21, _DOMAIN: 1}, model_rest=[(1, b"\x08\x0a")])
    file.inputs = [ValueInfo(name, _FLOAT, shape) for name, shape in inputs.items()]
    file.inputs += [ValueInfo(name, _INT32, [1]) for name in ("seqlens_k", "total_length")]
    file.inputs.append(ValueInfo("attention_bias", _FLOAT, [1, 1, "S", "T"]))
    file.outputs = [ValueInfo("mixed", _FLOAT, rows)]
    file.outputs += [ValueInfo(name, _FLOAT, slots) for name in ("present.0", "present.1")]
    return file.serialize()


def right_widths(session: Untyped, cache: KvCache, *, widths: Sequence[int]) -> int:
    """Return the widest of the ascending widths up to which passes are right. Raises CapabilityError if none is.

    session: over `attention_graph`. cache: of one layer, one head and at least as many slots as the widest.
    """
    right = 0
    for width in widths:
        if not _is_right(session, cache, width):
            break
        right = width
    if not right:
        raise CapabilityError("the graphics driver computes attention wrongly")
    return right


def _is_right(session: Untyped, cache: KvCache, width: int) -> bool:
    query, key, value = np.random.default_rng(0).standard_normal((3, width, SIZE), np.float32)
    binding = session.io_binding()
    for name, rows in {"query": query, "key": key, "value": value}.items():
        binding.bind_cpu_input(name, rows[None])
    for place, held in enumerate(cache.values):
        binding.bind_ortvalue_input(f"past.{place}", held)
        binding.bind_ortvalue_output(f"present.{place}", held)
    binding.bind_cpu_input("seqlens_k", np.array([width - 1], np.int32))
    binding.bind_cpu_input("total_length", np.array([width], np.int32))
    binding.bind_cpu_input("attention_bias", np.zeros((1, 1, width, width), np.float32))
    found = np.empty((1, width, SIZE), np.float32)
    binding.bind_output("mixed", "cpu", 0, np.float32, found.shape, found.ctypes.data)
    session.run_with_iobinding(binding)
    return bool(np.abs(found[0] - _attention(query, key, value)).max() < TOLERANCE)


def _attention(query: FloatArray, key: FloatArray, value: FloatArray) -> FloatArray:
    scores = query @ key.T / np.sqrt(np.float32(SIZE))
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: FloatArray = weights @ value / weights.sum(axis=1, keepdims=True)
    return mixed
