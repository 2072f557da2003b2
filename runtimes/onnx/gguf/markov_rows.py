"""A block drafter's facts besides its graph, and the Markov chain between its rows (DSpark): how a token changes the
logits of the next one, by the product of a row of one matrix and a row of another.

Only the likeliest tokens of a row are changed: they alone can become the draft, and the product of a whole row would
take as long as a layer.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.gguf.architectures import MARKOV
from edgedecode.gguf.contents import Tensor

from ..kernels.block_types import floats_of
from .metadata import Metadata, read_metadata

_MOST = 64
"""Tokens of a row that are changed at most, in 0.14 ms of 32,768; 256 take 0.5 ms. onnxruntime-genai takes 16."""
_BELOW = 10.0
"""Those whose logits are this far below the largest, at most."""


class BlockFacts:
    """What a block drafter's file says of its blocks. It holds both of the chain's matrices in memory."""

    def __init__(self, path: Path) -> None:
        metadata = read_metadata(path)
        self.length, self.mask = metadata.integer("block_size"), metadata.integer("mask_token_id")
        self.unused = 0 if metadata.integer("from_anchor") else 1
        """The first rows of a block, whose logits propose nothing."""
        found = [metadata.contents.tensors.get(name) for name in MARKOV]
        self._chain = [_rows(path, metadata, tensor) for tensor in found if tensor is not None]

    def link(self, row: FloatArray, before: int) -> None:
        """Change a row of logits in place, for the token before it."""
        if not self._chain:
            return
        (from_kind, of_former), (to_kind, of_latter) = self._chain
        places = np.flatnonzero(row >= row.max() - _BELOW)
        if len(places) > _MOST:
            places = places[np.argpartition(row[places], -_MOST)[-_MOST:]]
        row[places] += floats_of(to_kind, of_latter[places]) @ floats_of(from_kind, of_former[before : before + 1])[0]


def chain_nbytes(path: Path) -> int:
    """Return the bytes that `BlockFacts` holds."""
    tensors = read_metadata(path).contents.tensors
    return sum(tensors[name].nbytes for name in MARKOV if name in tensors)


def _rows(path: Path, metadata: Metadata, tensor: Tensor) -> tuple[int, npt.NDArray[np.uint8]]:
    """Return a matrix's type, and the bytes of its rows."""
    start = metadata.contents.start + tensor.offset
    return tensor.type, np.fromfile(path, np.uint8, tensor.nbytes, offset=start).reshape(tensor.shape[-1], -1)
