"""Rotary tables from a GGUF file's metadata and factor tensors, with the scalings of ggml's rope.

Sources: ggml_compute_forward_rope and rope_yarn in ggml/src/ggml-cpu/ops.cpp of llama.cpp.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import IntArray

from ..kernels.products import NotServed
from .metadata import Metadata

Floats = npt.NDArray[np.float64]
Tables = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
_LONG, _SHORT, _LLAMA3 = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"
FACTORS = (_LONG, _SHORT, _LLAMA3)
_BASE = 10000.0


def factors_name(metadata: Metadata) -> str:
    """Return the tensor with a factor for each frequency. Long factors serve contexts beyond the trained one."""
    original = metadata.integer("rope.scaling.original_context_length")
    long = metadata.integer("context_length") > original
    chosen = _LONG if long else _SHORT
    return chosen if chosen in metadata.contents.tensors else _LLAMA3


def rotary_tables(metadata: Metadata, factors: Mapping[str, Floats], *, positions: IntArray, window: bool) -> Tables:
    """Return cosines and sines [positions, rotated values / 2]. window: of layers with a base of their own."""
    return rotated(positions, *rotary_frequencies(metadata, factors, window=window))


def rotated(positions: IntArray, frequencies: Floats, strength: float) -> Tables:
    """Return the tables of `rotary_tables` for what `rotary_frequencies` returns."""
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * strength).astype(np.float32), (np.sin(angles) * strength).astype(np.float32)


def rotary_frequencies(metadata: Metadata, factors: Mapping[str, Floats], *, window: bool) -> tuple[Floats, float]:
    """Return angles per position, and what cosines and sines are multiplied by. Raises NotServed."""
    size = metadata.integer("rope.dimension_count", metadata.head_size)
    if window:
        size = metadata.integer("rope.dimension_count_swa", size)
        base, scaling = metadata.number("rope.freq_base_swa", _BASE), ""
    else:
        base, scaling = metadata.number("rope.freq_base", _BASE), metadata.text("rope.scaling.type")
    if base == 1 and scaling == "yarn":
        raise NotServed("its rotary embedding has the base 1, for which YaRN is not defined")
    frequencies = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    divisors = factors.get(factors_name(metadata))
    if divisors is not None and not window:
        if not (np.isfinite(divisors) & (divisors > 0)).all():
            raise NotServed(f"{factors_name(metadata)} has values that are no factors")
        frequencies /= divisors
    strength = 1.0 if window else metadata.number("rope.scaling.attn_factor", 1.0)
    if scaling == "linear":
        frequencies /= metadata.number("rope.scaling.factor", 1.0)
    elif scaling == "yarn":
        factor = metadata.number("rope.scaling.factor", 1.0)
        kept = _kept_shares(metadata, size=size, base=base)
        frequencies *= kept + (1 - kept) / factor
        shared = metadata.number("rope.scaling.yarn_log_multiplier", 0.0)
        strength *= (1 + 0.1 * math.log(factor)) / (1 + 0.1 * shared * math.log(factor))
    return frequencies, strength


def _kept_shares(metadata: Metadata, *, size: int, base: float) -> Floats:
    """Return for each frequency how much of it YaRN leaves unscaled: fast ones stay, slow ones are divided."""
    original = metadata.integer("rope.scaling.original_context_length", metadata.integer("context_length"))

    def place(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(place(metadata.number("rope.scaling.yarn_beta_fast", 32.0))))
    high = min(size - 1, math.ceil(place(metadata.number("rope.scaling.yarn_beta_slow", 1.0))))
    ramp = (np.arange(size // 2, dtype=np.float64) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)
