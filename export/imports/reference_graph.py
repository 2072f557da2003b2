"""Checks a rewritten graph against the original one, run by plain onnxruntime, and finds its usable context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from .foreign_graphs import cached_positions, has_builder_attention, read_optimum_sizes, window_of
from .graph_sizes import GraphSizes
from .onnx_source import OnnxSource

if TYPE_CHECKING:
    import onnx_ir as ir

_FATAL_ONLY = 4
"""ONNX Runtime's log severity."""
_LONGEST_PROBE = 4096
"""Maximum number of tokens for probing a sliding window; more take too long."""
_LARGEST_LOGITS = 1 << 30
"""Maximum bytes of logits while probing."""


class OriginalGraph:
    """A copy of a graph before it is rewritten. weights: its weights file; None if they are stored in the graph."""

    def __init__(self, model: ir.Model, weights: Path | None, sizes: GraphSizes) -> None:
        self._model = model.clone()
        for node in self._model.graph:  # a ring buffer needs a cache of the window's size; here the cache is empty
            node.attributes.pop("sliding_window_cache", None)
        self._weights = weights
        self._nbytes = 0 if weights is None else weights.stat().st_size
        self._sizes = sizes

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
        return found.reshape(-1, self._sizes.rows)

    def _session(self, *, exact: bool) -> Any:  # noqa: ANN401  (the engine ships no types)
        import onnx_ir as ir
        import onnxruntime

        model = self._model.clone()
        if exact:
            exact_products(model)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if self._weights is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(self._weights.parent))
        content = ir.to_proto(model).SerializeToString()
        folded = max(self._nbytes, len(content)) // 2
        weights = Weights("" if self._weights is None else self._weights.name, self._nbytes, folded)
        check_content(content, weights, joins=True)  # an untrusted graph names no other file
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def _feed(self, value: Any, tokens: Sequence[int]) -> npt.NDArray[np.generic]:  # noqa: ANN401
        """Return one input of a pass with an empty KV cache."""
        count = len(tokens)
        if value.name.startswith("past_key_values."):
            return np.zeros((1, self._sizes.kv_heads, 0, self._sizes.head_size), np.float32)
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


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The context within which results are correct, and a note if it is shorter than the declared one."""

    context: int
    notes: tuple[str, ...] = ()


def context_limit(source: OnnxSource) -> ContextLimit:
    """Find the limit. Runs the graph if it is optimum's and its configuration has a window. Raises ExportError."""
    if has_builder_attention(source):
        # The engine counts its window in cache slots, which is wrong for trees, so the context ends at the window.
        context = min(source.context, cached_positions(source))
        return _within(window_of(source) or source.window, context, "the model's sliding window")
    if not 0 < source.window < source.context:
        return ContextLimit(source.context)
    applied = _applies_window(source)
    if applied:
        return ContextLimit(source.context)
    reason = "which the graph ignores" if applied is False else "which is too long to probe"
    return _within(source.window, source.context, f"the model's sliding window, {reason}")


def _within(window: int, context: int, reason: str) -> ContextLimit:
    if not 0 < window < context:
        return ContextLimit(context)
    return ContextLimit(window, (f"context limited to {window} of {context} tokens: {reason}",))


def _applies_window(source: OnnxSource) -> bool | None:
    """Return whether a token outside all windows leaves the last row's logits unchanged; None: too long to probe.

    A layer attends to window - 1 earlier positions, so all layers together reach layers · (window - 1).
    """
    sizes = read_optimum_sizes(source)
    length = sizes.layers * (source.window - 1) + 2
    if length > min(_LONGEST_PROBE, source.context) or length * sizes.rows * 4 > _LARGEST_LOGITS:
        return None
    graph = OriginalGraph(source.model, source.weights, sizes)
    text = [3 + index % 17 for index in range(length)]
    before, after = (graph.logits([first, *text[1:]], exact=True)[-1] for first in (text[0], text[0] + 50))
    return bool((before == after).all())
