"""Checks a rewritten graph against the original one, run by plain onnxruntime."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.onnx_format.graph_check import Weights, check_content
from edgedecode.pack.manifest import ModelEntry

from ..checks.model_checks import CheckTexts, opened
from ..checks.parity import TOLERANCE, check_exact, check_kernels, own_rows
from ..frameworks import reason_of
from ..graph.passes.stored_weights import exact_products
from .onnx_source import OnnxSource

_FATAL_ONLY = 4
"""ONNX Runtime's log severity."""


class OriginalGraph:
    """A copy of a source's graph before it is rewritten."""

    def __init__(self, source: OnnxSource) -> None:
        self._model = source.model.clone()
        for node in self._model.graph:  # a ring buffer needs a cache of the window's size; here the cache is empty
            node.attributes.pop("sliding_window_cache", None)
        self._weights, self._rows, self._decoder = source.weights, source.rows, source.config.decoder

    def logits(self, tokens: Sequence[int], *, exact: bool) -> FloatArray:
        """Return the logits of one pass over a text, [tokens, rows]; `exact`: products do not round activations.

        Raises ExportError if the engine cannot run the graph.
        """
        try:
            session = self._session(exact=exact)
            feeds = {value.name: self._feed(value, tokens) for value in session.get_inputs()}
            found: FloatArray = session.run(["logits"], feeds)[0]
        except Exception as error:  # the engine's exceptions share no base class
            raise ExportError(f"ONNX Runtime cannot run the original graph: {reason_of(error)}") from None
        return found.reshape(-1, self._rows)

    def _session(self, *, exact: bool) -> Any:  # noqa: ANN401  (the engine ships no types)
        import onnx_ir as ir
        import onnxruntime

        model = self._model.clone()
        if exact:
            exact_products(model)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(self._weights.parent))
        content = ir.to_proto(model).SerializeToString()
        nbytes = self._weights.stat().st_size
        check_content(content, Weights(self._weights.name, nbytes, nbytes // 2))  # it is untrusted, and may name files
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def _feed(self, value: Any, tokens: Sequence[int]) -> npt.NDArray[np.generic]:  # noqa: ANN401
        """Return one input of a pass with an empty KV cache."""
        count = len(tokens)
        if value.name.startswith("past_key_values."):
            return np.zeros((1, self._decoder.num_key_value_heads, 0, self._decoder.head_size), np.float32)
        known = {"input_ids": list(tokens), "attention_mask": [1] * count, "position_ids": list(range(count))}
        if value.name not in known:
            raise ExportError(f"the input {value.name} is unknown")
        kind = np.int32 if value.type == "tensor(int32)" else np.int64
        return np.asarray([known[value.name]], kind)


def check_import(
    entry: ModelEntry, pack: Path, *, exact: str, original: OriginalGraph, texts: CheckTexts
) -> Mapping[str, float]:
    """Check that a model is consistent, and that it agrees with the original graph. Raises ExportError.

    exact: the file of its graph whose products do not round activations. On that graph, one pass, several passes,
    a rollback and a tree in two passes must agree with each other and with the original graph up to summation order.
    The shipped kernels are then compared with the exact graph's rows.
    """
    length = len(texts.text.text)
    graph = replace(entry.graphs["base"], file=exact)
    with opened(replace(entry, graphs={"base": graph}), pack, texts) as model:
        expected = own_rows(model, texts.text)
        numbers = {"tokens": float(len(expected)), "deviation": float(expected.std())}
        numbers |= check_exact(model, texts.text, expected)
    numbers["source_error"] = _difference(expected[:length], original, texts)
    if min(entry.bits, entry.head_bits) < 16:
        with opened(entry, pack, texts) as model:
            numbers |= check_kernels(model, texts.text, expected)
            found = own_rows(model, texts.text)[:length]
        reference = original.logits(texts.text.text, exact=False)
        numbers["source_kernel_error"] = float(np.abs(found - reference).max())
    return numbers


def _difference(found: FloatArray, original: OriginalGraph, texts: CheckTexts) -> float:
    """Return the largest difference from the original graph. Raises ExportError if it exceeds rounding errors."""
    reference = original.logits(texts.text.text, exact=True)
    error = float(np.abs(found - reference).max())
    limit = TOLERANCE * max(1.0, float(reference.std()))
    if not error <= limit:
        raise ExportError(
            f"the rewritten graph differs from the original (largest difference {error:.2g}, allowed {limit:.2g}): "
            f"this model cannot be imported"
        )
    return error
