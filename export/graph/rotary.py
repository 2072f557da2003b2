"""Rotary positions as a network computes them: modules without weights, and the tables a graph carries.

A long-rope model has two sets of frequencies and changes to the second one where a text grows beyond its short context.
Keys rotated by the first are then wrong, so a graph has one set only: the short one up to the switch, or the long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["RotaryTables", "per_layer_rotary", "revive_rotary", "rotary_tables"]


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines, float32 [positions, rotary size / 2] each."""

    cosine: torch.Tensor
    sine: torch.Tensor


def revive_rotary(network: PreTrainedModel, *, long: bool = False) -> None:
    """Make the rotary module again: it has no weights, and the first one's frequencies are on the meta device.

    long: fix it to a long-rope model's second set of frequencies, whatever the length of the text.
    """
    body: Any = network.model
    rotary = type(body.rotary_emb)(config=network.config)
    if long:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        beyond = network.config.rope_parameters["original_max_position_embeddings"] + 1
        frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](network.config, None, seq_len=beyond)
        rotary.inv_freq = rotary.original_inv_freq = frequencies
        rotary.rope_type = "default"  # fixed: the forward pass changes frequencies of other types
    body.rotary_emb = rotary


def per_layer_rotary(network: PreTrainedModel) -> bool:
    """Tell whether windowed and full layers rotate differently (Gemma 3)."""
    rotary: Any = network.model.rotary_emb
    return isinstance(rotary.rope_type, dict)


def rotary_tables(network: PreTrainedModel, *, length: int, kind: str | None) -> RotaryTables:
    """Compute the tables of the first `length` positions with the model's own module; `kind` as it names its layers."""
    import torch

    rotary: Any = network.model.rotary_emb
    more = {} if kind is None else {"layer_type": kind}
    with torch.no_grad():
        cosine, sine = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None], **more)
    half = cosine.shape[-1] // 2  # the second half repeats the first
    return RotaryTables(cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous())
