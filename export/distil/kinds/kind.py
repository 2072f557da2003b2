"""What can be trained: a head or a draft model, with the ids that it proposes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from edgedecode.arrays import IntArray

from ...stages import Stages
from ..network import Network
from ..plan import Needs
from ..target_weights import TargetWeights
from ..texts import Text

ROWS = 8192
"""Ids that are proposed: those most used are 95% of SmolLM2-135M's held-out answers, and a step of its head costs 0.05
to 0.07 of its own."""
IDS = "draft.ids"
"""The file of the ids whose logits a draft model was trained on."""
TRIAL = "trial-"
"""Begins the names of temporary folders in the work's folder."""


@dataclass(frozen=True, slots=True)
class Started:
    """A network, the id of each of its rows, ascending, and its embedding, [ids, hidden]."""

    network: Network
    ids: IntArray
    table: Tensor


class Kind(Protocol):
    taps: tuple[int, ...]
    """The target's layers whose inputs it reads."""
    drafter: str
    """The drafter that uses it."""

    def needs(self, target: TargetWeights) -> Needs:
        """Return what its training takes."""

    def start(self, target: TargetWeights, texts: Sequence[Text]) -> Started:
        """Return a new one, or the earlier one that is trained on. Raises ExportError for an earlier one that differs.

        texts: those of the training.
        """

    def write(self, folder: Path, started: Started) -> None:
        """Write it for other programs."""

    def is_alike(self, root: Path) -> bool:
        """Return whether the pack has one already whose steps cost the same."""

    def add(self, root: Path, folder: Path, stages: Stages) -> None:
        """Put what was written into a pack, in the place of an earlier one, in one step."""


def frequent_ids(texts: Sequence[Text], *, rows: int, vocabulary_size: int) -> IntArray:
    """Return the ids that answers use most, ascending; of ids that none uses the smallest, whose merges came first."""
    counts = np.zeros(vocabulary_size, np.int64)
    for text in texts:
        np.add.at(counts, np.array(text.answer), 1)
    order = np.lexsort((np.arange(vocabulary_size), -counts))
    return np.sort(order[:rows])
