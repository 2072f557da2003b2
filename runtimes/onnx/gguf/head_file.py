"""What a drafting head's file says besides its graph: the ids of its rows, and what it makes its target keep."""

from pathlib import Path

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.errors import ManifestError
from edgedecode.gguf.contents import TYPE_NAMES
from edgedecode.memory.budget import Holder

from ..features import features_nbytes
from .metadata import IDS, read_metadata

TAPS = 3
"""The layers of the target that a head reads."""


def head_ids(path: Path) -> IntArray | None:
    """Return the token id of each row of a head's logits; None: a row is its id."""
    contents = read_metadata(path).contents
    listed = contents.tensors.get(IDS)
    if listed is None:
        return None
    if TYPE_NAMES[listed.type] != "I64" or len(listed.shape) != 1:
        raise ManifestError(f"{path} has ids of another type: add the head again")
    return np.fromfile(path, "<i8", count=listed.shape[0], offset=contents.start + listed.offset)


def head_features(path: Path) -> Holder:
    """Return the memory of the features that the target's state keeps for a head."""
    metadata = read_metadata(path)
    nbytes = features_nbytes(TAPS, metadata.integer("target_hidden_size", metadata.hidden))
    return Holder("features:target", nbytes)
