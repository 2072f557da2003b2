"""A network's RoPE in llama.cpp's terms, derived from its actual frequencies, not from names in its configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import Architecture

from ..graph.network import FULL, SLIDING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = 1e-5
"""Relative difference below which frequencies are equal."""
STILL = 1e30
"""The factor of pairs that are not rotated, as in llama.cpp's conversion folder."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE parameters. size: rotated elements of a head. factors: divisors of the base's frequencies, [size / 2].

    kind: linear, yarn or empty, with its `factor` and, for yarn, the `original` context. strength: factor of the
    rotated q and k, in addition to llama.cpp's own. window_base: the base in layers with a sliding window.
    """

    size: int
    base: float
    kind: str = ""
    factor: float = 1.0
    original: int = 0
    betas: tuple[float, float] = (32.0, 1.0)
    strength: float = 1.0
    factors: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    window_base: float | None = None


def read_rotation(network: "PreTrainedModel", layout: Architecture) -> Rotation:
    """Read the parameters from the network's rotary module. Raises ExportError if the layout does not support them."""
    parameters: Mapping[str, Any] = network.config.rope_parameters or {}
    if FULL in parameters or SLIDING in parameters:
        return _by_layer_type(network, parameters, layout)
    rotary: Any = network.model.rotary_emb
    if rotary is None:
        return Rotation(network.config.hidden_size // network.config.num_attention_heads, 10000.0)
    return _rotation(parameters, rotary.inv_freq.numpy(), strength=rotary.attention_scaling, layout=layout)


def _by_layer_type(network: "PreTrainedModel", parameters: Mapping[str, Any], layout: Architecture) -> Rotation:
    """Read Gemma 3's parameters. llama.cpp supports a separate base for windowed layers, but no scaling of them."""
    rotary: Any = network.model.rotary_emb
    found = {
        kind: _rotation(
            parameters[kind],
            getattr(rotary, f"{kind}_inv_freq").numpy(),
            strength=getattr(rotary, f"{kind}_attention_scaling"),
            layout=layout,
        )
        for kind in (FULL, SLIDING)
    }
    local = found[SLIDING]
    if local.kind or local.strength != 1.0:
        raise ExportError(
            f"llama.cpp's {layout.name} scales RoPE only in layers with full attention, this configuration also in "
            f"windowed layers: export without gguf among the --formats"
        )
    return replace(found[FULL], window_base=local.base)


def _rotation(
    parameters: Mapping[str, Any], frequencies: FloatArray, *, strength: float, layout: Architecture
) -> Rotation:
    size, base = 2 * len(frequencies), float(parameters.get("rope_theta") or 10000.0)
    plain = 1.0 / base ** (np.arange(0, size, 2, dtype=np.float64) / size)
    turning = np.where(frequencies > 0, frequencies.astype(np.float64), plain / STILL)
    factors = plain / turning
    kind = str(parameters.get("rope_type", "default"))
    if np.allclose(factors, factors[0], rtol=_TOLERANCE, atol=0) and strength == 1.0:
        scaled = abs(factors[0] - 1.0) > _TOLERANCE
        return Rotation(size, base, "linear" if scaled else "", float(factors[0]) if scaled else 1.0)
    if layout.factors:
        return Rotation(size, base, strength=strength, factors=factors.astype(np.float32))
    if kind == "yarn":
        return _yarn(parameters, size=size, base=base, strength=strength)
    raise ExportError(
        f"llama.cpp's {layout.name} does not support RoPE of type {kind!r}: export without gguf among the --formats"
    )


def _yarn(parameters: Mapping[str, Any], *, size: int, base: float, strength: float) -> Rotation:
    """Return yarn parameters; llama.cpp itself applies a strength of 1 + 0.1 ln(factor), which is divided out."""
    factor = float(parameters["factor"])
    built_in = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    return Rotation(
        size,
        base,
        "yarn",
        factor,
        int(parameters["original_max_position_embeddings"]),
        (float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1)),
        strength / built_in,
    )
