"""How many positions of an imported model can be used: what its files say, and windows that its graph may have lost."""

from __future__ import annotations

from dataclasses import dataclass

from .builder_graph import cached_positions, has_builder_attention, window_of
from .onnx_source import OnnxSource
from .optimum_graph import read_optimum_sizes
from .untouched import Untouched

__all__ = ["ContextLimit", "context_limit"]

_LONGEST_PROBE = 4096
_LARGEST_LOGITS = 1 << 30


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
    """Tell whether a token that no window reaches leaves the last row's logits alone; None: too long to try.

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
