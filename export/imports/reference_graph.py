"""An imported graph in its original form, run by plain onnxruntime: the reference for the rewritten graph."""

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

__all__ = ["ContextLimit", "Untouched", "check_import", "context_limit"]

_SILENT = 4
_LONGEST_PROBE = 4096
_LARGEST_LOGITS = 1 << 30


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
            raise ExportError(f"ONNX Runtime cannot run the original graph: {reason_of(error)}") from None
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


def check_import(
    entry: ModelEntry, pack: Path, *, exact: str, untouched: Untouched, texts: CheckTexts
) -> Mapping[str, float]:
    """Compare a model with itself and with the original graph; there are no original weights to compare with.

    exact: the file of its graph whose products do not round activations. On that graph whole, pieces, crop and a tree
    of two passes must agree with each other and with the untouched graph up to summation order; the shipped kernels
    are then held to its rows. Raises ExportError.
    """
    length = len(texts.text.text)
    graph = replace(entry.graphs["base"], file=exact)
    with opened(replace(entry, graphs={"base": graph}), pack, texts) as model:
        expected = own_rows(model, texts.text)
        numbers = {"tokens": float(len(expected)), "deviation": float(expected.std())}
        numbers |= check_exact(model, texts.text, expected)
    numbers["source_error"] = _difference(expected[:length], untouched, texts)
    if min(entry.bits, entry.head_bits) < 16:
        with opened(entry, pack, texts) as model:
            numbers |= check_kernels(model, texts.text, expected)
            found = own_rows(model, texts.text)[:length]
        came = untouched.logits(texts.text.text, exact=False)
        numbers["source_kernel_error"] = float(np.abs(found - came).max())
    return numbers


def _difference(found: FloatArray, untouched: Untouched, texts: CheckTexts) -> float:
    """Return the largest difference from the original graph. Raises ExportError where it is not a rounding."""
    came = untouched.logits(texts.text.text, exact=True)
    error = float(np.abs(found - came).max())
    limit = TOLERANCE * max(1.0, float(came.std()))
    if not error <= limit:
        raise ExportError(
            f"the rewritten graph does not compute what the original does (largest difference {error:.2g}, allowed "
            f"{limit:.2g}): this model cannot be imported"
        )
    return error


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """Positions that give the model's own results, and a sentence where they are fewer than it claims."""

    context: int
    notes: tuple[str, ...] = ()


def context_limit(source: OnnxSource) -> ContextLimit:
    """Find the limit; runs a graph of optimum's where its configuration names a window. Raises ExportError."""
    if has_builder_attention(source):
        # The engine's window counts slots, which is wrong for trees past it; inside it there is none to get wrong.
        context = min(source.context, cached_positions(source))
        return _within(window_of(source) or source.window, context, "the model's sliding window")
    if not 0 < source.window < source.context:
        return ContextLimit(source.context)
    honoured = _honours_window(source)
    if honoured:
        return ContextLimit(source.context)
    reason = (
        "its sliding window: the graph sees further" if honoured is False else "its sliding window, too long to probe"
    )
    return _within(source.window, source.context, reason)


def _within(window: int, context: int, reason: str) -> ContextLimit:
    if not 0 < window < context:
        return ContextLimit(context)
    return ContextLimit(window, (f"context limited to {window} tokens, {reason}, of {context}",))


def _honours_window(source: OnnxSource) -> bool | None:
    """Return whether a token that no window reaches leaves the last row's logits alone; None: too long to try.

    A layer sees window - 1 positions back, so all layers together layers · (window - 1).
    """
    sizes = read_optimum_sizes(source)
    length = sizes.layers * (source.window - 1) + 2
    if length > min(_LONGEST_PROBE, source.context) or length * sizes.rows * 4 > _LARGEST_LOGITS:
        return None
    graph = Untouched(source.model, source.weights, sizes)
    text = [3 + index % 17 for index in range(length)]
    before, after = (graph.logits([first, *text[1:]], exact=True)[-1] for first in (text[0], text[0] + 50))
    return bool((before == after).all())
