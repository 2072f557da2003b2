"""What stock llama.cpp computes otherwise than a network: refused, folded into a norm, or a shorter context.

Nothing is carried that would be computed wrongly without a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError

from ..graph.architectures import Shape
from ..graph.network import Windows
from .layouts import Layout
from .rotary import Rotation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["check_network", "context_limit", "query_factor", "window_notes"]

_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries llama.cpp scales by hidden size over heads; all others by the head size."""
_SMOLLM3_STEP = 4
_WITHOUT = "export without gguf among the --formats"


def check_network(network: PreTrainedModel, shape: Shape, layout: Layout, rotation: Rotation) -> None:
    """Raise ExportError for what llama.cpp cannot compute of this configuration."""
    config: Any = network.config
    if layout.square and shape.heads * shape.head_size != shape.hidden:
        raise ExportError(
            f"llama.cpp's {layout.name} wants {shape.heads} heads of {shape.head_size} to make the hidden size "
            f"{shape.hidden}: {_WITHOUT}"
        )
    if layout.interleaved and rotation.size != shape.head_size:
        raise ExportError(
            f"llama.cpp's {layout.name} rotates whole heads of {shape.head_size}, this model {rotation.size} of each: "
            f"{_WITHOUT}"
        )
    if getattr(config, "hidden_act", None) not in (None, "silu") and not layout.shifted:
        raise ExportError(
            f"llama.cpp's {layout.name} has silu for its activation, not {config.hidden_act!r}: {_WITHOUT}"
        )
    if layout.name == "smollm3" and not _usual_positions(config.no_rope_layers):
        raise ExportError(
            f"llama.cpp's smollm3 leaves positions out in every fourth layer, this one elsewhere: {_WITHOUT}"
        )
    if layout.name in _LARGEST_GEMMAS and layout.name != "gemma3" and query_factor(network, shape, layout) != 1.0:
        raise ExportError(
            f"llama.cpp's {layout.name} scales queries by the head size {shape.head_size}, this model by "
            f"query_pre_attn_scalar {config.query_pre_attn_scalar}: {_WITHOUT}"
        )


def query_factor(network: PreTrainedModel, shape: Shape, layout: Layout) -> float:
    """Return what Gemma's queries must be multiplied by so that llama.cpp's own scale makes them right."""
    if layout.name not in _LARGEST_GEMMAS:
        return 1.0
    largest = shape.layers == _LARGEST_GEMMAS[layout.name]
    theirs = shape.hidden // shape.heads if largest else shape.head_size
    ours = float(getattr(network.config, "query_pre_attn_scalar", theirs))
    return math.sqrt(theirs / ours)


def context_limit(windows: Windows, layout: Layout, *, context: int) -> int:
    """Return the positions up to which llama.cpp computes the same: without windows, where the first would end."""
    return context if layout.windows or not windows.size else min(windows.size, context)


def window_notes(windows: Windows, layout: Layout, *, context: int) -> tuple[str, ...]:
    """Say what a user must know of the limit, a sentence each."""
    if (limit := context_limit(windows, layout, context=context)) == context:
        return ()
    return (
        f"the GGUF file's context is {limit} of {context} tokens: llama.cpp's {layout.name} has no sliding windows, "
        f"and longer texts would be computed otherwise",
    )


def _usual_positions(layers: Sequence[int]) -> bool:
    return all(bool(used) == bool((place + 1) % _SMOLLM3_STEP) for place, used in enumerate(layers))
