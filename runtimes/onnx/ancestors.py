"""The tree of pending rows: each row's ancestors, as the attention bias needs them."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError

BLOCKED = -1e9
"""Added to the score of a row that is not an ancestor. Finite, so that no row has only infinities (NaN after softmax),
and so far below any score that its weight is exactly zero."""
_BIAS_OF_BIT = np.array([BLOCKED, 0.0], np.float32)
_CACHED_MASKS = 512


class Ancestors:
    """The tree of one state's pending rows; initially a chain.

    For a bias, a row's ancestors, with itself, are the bits of one integer. The integers of recent rows are cached;
    others are rebuilt from the parents, so that hundreds of branches of hundreds of rows need little memory.
    """

    __slots__ = ("_depths", "_masks", "_parents")

    def __init__(self, chain: int) -> None:
        self._parents = array("i", range(-1, chain - 1))
        self._depths = array("i", range(chain))
        self._masks: dict[int, int] = {}

    def grow(self, parents: Iterable[int], *, after: int) -> None:
        """Append rows after the first `after`; later rows, left by an interrupted pass, are dropped."""
        if len(self._parents) > after:
            del self._parents[after:], self._depths[after:]
            self._masks.clear()
        for parent in parents:
            self._parents.append(parent)
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)

    @property
    def count(self) -> int:
        return len(self._parents)

    def trunk(self) -> int:
        """Return how many rows from the first on are a chain that all later rows continue."""
        chain = next((row for row, parent in enumerate(self._parents) if parent != row - 1), self.count)
        return min(chain, 1 + min(self._parents[chain:], default=chain))

    def depths(self, start: int, stop: int) -> Sequence[int]:
        """Return the depths of rows start to stop; children of the last settled position have depth 0."""
        return self._depths[start:stop]

    def parents(self, stop: int) -> npt.NDArray[np.int32]:
        """Return the parents of rows 0 to stop, int32; -1: the last settled position."""
        return np.array(self._parents[:stop], np.int32)

    def fill_bias(self, bias: FloatArray, *, settled: int, start: int) -> None:
        """Write the bias of the rows from `start`, [rows, settled + start + rows]; settled positions are visible."""
        rows, total = bias.shape
        pending = total - settled
        nbytes = (pending + 7) // 8
        packed = b"".join(self._mask(start + row).to_bytes(nbytes, "little") for row in range(rows))
        bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(rows, nbytes), axis=1, bitorder="little")
        bias[:, :settled] = 0.0
        bias[:, settled:] = _BIAS_OF_BIT[bits[:, :pending]]

    def check_path(self, path: Sequence[int], *, pending: int) -> None:
        """Raise InputError unless `path` leads from a child of the last settled position down the `pending` rows."""
        above = -1
        for node in path:
            if not 0 <= node < pending or self._parents[node] != above:
                raise InputError(f"pending row {node} does not continue row {above}: keep one path, root first")
            above = node

    def _mask(self, row: int) -> int:
        mask, node = 0, row
        while node >= 0:
            known = self._masks.get(node)
            if known is not None:
                mask |= known
                break
            mask |= 1 << node
            node = self._parents[node]
        if len(self._masks) >= _CACHED_MASKS:
            self._masks.clear()
        self._masks[row] = mask
        return mask
