"""What a GGUF file's tensors say of its model: parameters, and how wide its weights are. Reads no weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from edgedecode.gguf.contents import BLOCKS, Tensor
from edgedecode.gguf.header import EMBEDDING, OUTPUT

__all__ = ["WeightWidths", "read_widths"]

_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""ggml's names of the tensor types."""


@dataclass(frozen=True, slots=True)
class WeightWidths:
    """Bits and block size of most of the layers' matrices; their types, the commonest first; the head's bits."""

    parameters: int
    bits: int
    block_size: int
    """0: floats, which have no blocks."""
    head_bits: int
    quantization: str


def read_widths(tensors: Mapping[str, Tensor]) -> WeightWidths:
    """Count a file's tensors, given by name, by their types."""
    counted: Counter[int] = Counter()
    for tensor in tensors.values():
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            counted[tensor.type] += prod(tensor.shape)
    kinds = [kind for kind, _ in counted.most_common()] or [tensors[EMBEDDING].type]
    block = BLOCKS[kinds[0]][0]
    return WeightWidths(
        parameters=sum(prod(tensor.shape) for tensor in tensors.values()),
        bits=_bits(kinds[0]),
        block_size=block if block > 1 else 0,
        head_bits=_bits(tensors.get(OUTPUT, tensors[EMBEDDING]).type),
        quantization=", ".join(_NAMES[kind] for kind in kinds),
    )


def _bits(kind: int) -> int:
    """Return the bits that a type is named after."""
    digits = re.search(r"\d+", _NAMES[kind])
    assert digits is not None
    return int(digits[0])
