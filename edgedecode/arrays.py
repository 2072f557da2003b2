"""Array types used by all packages: float32 logits and int64 token ids."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]


def bfloat16_floats(halves: npt.NDArray[np.uint16]) -> FloatArray:
    """Return float32 values of which bfloat16 stores the upper halves."""
    return (halves.astype("<u4") << 16).view("<f4")
