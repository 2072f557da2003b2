"""The toy graph in plain numpy: one float64 pass over a full text, where each row attends to its ancestors."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from tests.contract.toy_graph import ToyGraph, ToyShape, cache_scales

Floats = npt.NDArray[np.float64]


class ToyNumpy:
    """Compute the expected output of the float toy of this shape.

    deltas are added to projections by name, as `layer0.q`; int8_cache rounds keys and values like the graph kv8.
    """

    def __init__(
        self, shape: ToyShape, deltas: Mapping[str, Floats] | None = None, *, int8_cache: bool = False
    ) -> None:
        assert shape.bits == 32
        self._shape, self._int8_cache = shape, int8_cache
        weights = ToyGraph(shape).build().graph.initializer
        self._weights = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in weights}
        for layer in range(shape.layers if shape.packed else 0):
            packed = self._weights.pop(f"layer{layer}.qkv.weight")
            ends = np.cumsum([shape.heads * shape.head_size, shape.kv_heads * shape.head_size])
            for part, weight in zip("qkv", np.split(packed, ends, axis=1), strict=True):
                self._weights[f"layer{layer}.{part}.weight"] = weight
        for name, delta in (deltas or {}).items():
            self._weights[f"{name}.weight"] = self._weights[f"{name}.weight"] + delta

    def logits(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Floats:
        """Return [tokens, rows]; parents are indices into `tokens`, -1 for a first token; None is a chain."""
        parents = range(-1, len(tokens) - 1) if parents is None else parents
        visible, depths = np.zeros((len(tokens),) * 2, bool), np.zeros(len(tokens), int)
        for row, parent in enumerate(parents):
            if parent >= 0:
                visible[row], depths[row] = visible[parent], depths[parent] + 1
            visible[row, row] = True
        hidden = self._weights["embedding"][list(tokens)]
        for layer in range(self._shape.layers):
            hidden = self._layer(hidden, layer, visible=visible, depths=depths)
        return _norm(hidden) @ self._weights["head.weight"]

    def _layer(
        self, hidden: Floats, layer: int, *, visible: npt.NDArray[np.bool_], depths: npt.NDArray[np.int_]
    ) -> Floats:
        shape, name = self._shape, f"layer{layer}"
        if shape.bias_of(layer) == "window_bias":
            visible = visible & (depths[:, None] - depths[None, :] < shape.window)
        normed = _norm(hidden)
        query = self._rotated(self._heads(normed, f"{name}.q"), depths)
        cache = [self._rotated(self._heads(normed, f"{name}.k"), depths), self._heads(normed, f"{name}.v")]
        if self._int8_cache:
            scales = cache_scales(shape, layer)[:, :, None]
            cache = [np.rint(part / scale).clip(-128, 127) * scale for part, scale in zip(cache, scales, strict=True)]
        key, value = (np.repeat(part, shape.heads // shape.kv_heads, axis=0) for part in cache)
        scores = np.where(visible, query @ key.transpose(0, 2, 1) / shape.head_size**0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        hidden = hidden + mixed.transpose(1, 0, 2).reshape(len(hidden), -1) @ self._weights[f"{name}.o.weight"]
        normed = _norm(hidden)
        gate = normed @ self._weights[f"{name}.gate.weight"]
        product = gate / (1 + np.exp(-gate)) * (normed @ self._weights[f"{name}.up.weight"])
        return np.asarray(hidden + product @ self._weights[f"{name}.down.weight"])

    def _heads(self, normed: Floats, name: str) -> Floats:
        """Project to [heads, tokens, head size]."""
        projected = normed @ self._weights[f"{name}.weight"]
        return np.asarray(projected.reshape(len(normed), -1, self._shape.head_size).transpose(1, 0, 2))

    def _rotated(self, heads: Floats, depths: npt.NDArray[np.int_]) -> Floats:
        cosine, sine = self._weights["cos"][depths], self._weights["sin"][depths]
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)


def _norm(hidden: Floats) -> Floats:
    return np.asarray(hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5))
