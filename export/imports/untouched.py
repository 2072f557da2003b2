"""An imported graph as it came, run by plain onnxruntime: what its rewritten form ought to compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.onnx_format.graph_check import Weights, check_content

from ..frameworks import reason_of
from ..graph.passes.stored_weights import exact_products
from .graph_sizes import GraphSizes

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Untouched"]

_SILENT = 4


class Untouched:
    """A copy of a graph made before any pass; `weights` is its file of weights, None where they lie inside it."""

    def __init__(self, model: ir.Model, weights: Path | None, sizes: GraphSizes) -> None:
        self._model = model.clone()
        for node in self._model.graph:  # a ring of slots wants a cache of the window's size, which one pass has not
            node.attributes.pop("sliding_window_cache", None)
        self._weights = weights
        self._nbytes = 0 if weights is None else weights.stat().st_size
        self._sizes = sizes

    def logits(self, tokens: Sequence[int], *, exact: bool) -> FloatArray:
        """Return the logits of one pass over a text, [tokens, rows]; `exact`: products do not round activations.

        Raises ExportError where the engine cannot run the graph.
        """
        try:
            session = self._session(exact=exact)
            feeds = {value.name: self._feed(value, tokens) for value in session.get_inputs()}
            found: FloatArray = session.run(["logits"], feeds)[0]
        except Exception as error:  # the engine's exceptions share no base class
            raise ExportError(f"ONNX Runtime cannot run the graph as it came: {reason_of(error)}") from None
        return found.reshape(-1, self._sizes.rows)

    def _session(self, *, exact: bool) -> Any:  # noqa: ANN401  (the engine ships no types)
        import onnx_ir as ir
        import onnxruntime

        model = self._model.clone()
        if exact:
            exact_products(model)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        if self._weights is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(self._weights.parent))
        content = ir.to_proto(model).SerializeToString()
        folded = max(self._nbytes, len(content)) // 2
        weights = Weights("" if self._weights is None else self._weights.name, self._nbytes, folded)
        check_content(content, weights, joins=True)  # an untrusted graph names no other file
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def _feed(self, value: Any, tokens: Sequence[int]) -> npt.NDArray[np.generic]:  # noqa: ANN401
        """Return one input of a pass without a past."""
        count = len(tokens)
        if value.name.startswith("past_key_values."):
            return np.zeros((1, self._sizes.kv_heads, 0, self._sizes.head_size), np.float32)
        known = {"input_ids": list(tokens), "attention_mask": [1] * count, "position_ids": list(range(count))}
        if value.name not in known:
            raise ExportError(f"the input {value.name} is unknown")
        kind = np.int32 if value.type == "tensor(int32)" else np.int64
        return np.asarray([known[value.name]], kind)
