"""What a drafting head's file says besides its graph: the ids of its rows, and what it makes its target keep."""

from pathlib import Path

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.errors import ManifestError
from edgedecode.gguf.architectures import HEAD_IDS
from edgedecode.gguf.contents import TYPE_NAMES
from edgedecode.memory.budget import Holder

from ..features import features_nbytes
from .metadata import read_metadata


def head_ids(path: Path, *, rows: int, vocabulary_size: int) -> IntArray | None:
    """Return the token id of each row of a head's logits; None: a row is its id. Raises ManifestError for others."""
    contents = read_metadata(path).contents
    listed = contents.tensors.get(HEAD_IDS)
    if listed is None:
        return None
    if TYPE_NAMES[listed.type] == "I64" and listed.shape == (rows,):
        ids: IntArray = np.fromfile(path, "<i8", count=rows, offset=contents.start + listed.offset)
        if ids[0] >= 0 and ids[-1] < vocabulary_size and (ids[1:] > ids[:-1]).all():
            return ids
    raise ManifestError(f"{path} has no ascending ids of {rows} rows in {HEAD_IDS}: add the head again")


def head_holders(path: Path, *, logits_row_nbytes: int) -> tuple[Holder, ...]:
    """Return the memory of the features that the target's state keeps for a head, and of the logits of its blocks."""
    metadata = read_metadata(path)
    nbytes = features_nbytes(metadata.taps, metadata.integer("target_hidden_size", metadata.hidden))
    rows = metadata.integer("block_size") - metadata.integer("from_anchor")  # besides one, as of every model
    return Holder("features:target", nbytes), *([Holder("logits:head", rows * logits_row_nbytes)] if rows > 0 else [])
