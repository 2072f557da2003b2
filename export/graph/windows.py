"""Sliding windows: which of a network's layers have one, and how many positions they see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["FULL", "SLIDING", "Windows", "find_windows"]

FULL, SLIDING = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in transformers' configurations."""


@dataclass(frozen=True, slots=True)
class Windows:
    """`layers[i]` says whether layer i sees only the last `size` positions, its own included; size 0: none does."""

    size: int
    layers: tuple[bool, ...]

    def narrowed(self, size: int) -> Windows:
        """Return the same layers with a window of at most `size`: the wiring is the same, the check is cheaper."""
        return replace(self, size=min(self.size, size))

    def visible(self, visible: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return what window layers see of `visible`, [rows, rows], at these positions, [rows]."""
        distance = positions[:, None] - positions[None, :]
        return visible & (distance < self.size)


def find_windows(network: PreTrainedModel, *, context: int) -> Windows:
    """Read a network's windows from its configuration; one that the whole context fits in is none.

    Configurations that name no types of layers (Mistral, Phi-3) mean every layer, as their modules do.
    """
    config: Any = network.config
    size = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    count = config.num_hidden_layers
    layers = tuple(kind == SLIDING for kind in kinds) if kinds else (size > 0,) * count
    return Windows(size, layers) if 0 < size < context and any(layers) else Windows(0, (False,) * count)
