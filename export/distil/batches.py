"""Batches of texts and their labels, in an order that only a seed decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from edgedecode.arrays import IntArray

from .labels import TOP, Labels

POSITIONS = 2048
"""Of a batch, padding included."""
_SORTED = 256
"""Texts that are sorted by length together, so that batches have little padding."""
_NO_LOG = -30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, [texts, positions, ...]; a position's values are those of the token after its next one."""

    features: Tensor
    tokens: Tensor
    """One more than positions."""
    lengths: Tensor
    trained: Tensor
    """Positions whose token after the next is beyond what all prompts begin with."""
    answered: Tensor
    """Those whose token after the next is in the answer."""
    rows: Tensor
    """The rows of the target's likeliest tokens; the number of rows where there is none."""
    logs: Tensor

    @property
    def next_tokens(self) -> Tensor:
        return self.tokens[:, 1:]


class Batches:
    """Makes batches of texts. ids: each row's token."""

    def __init__(self, labels: Labels, ids: IntArray, *, vocabulary_size: int) -> None:
        self._labels, self._count = labels, len(ids)
        self._common = _common_length([text.prompt for text in labels.texts])
        self._row_of = torch.full((vocabulary_size,), len(ids), dtype=torch.long)
        self._row_of[torch.from_numpy(ids)] = torch.arange(len(ids))

    def epoch(self, texts: Sequence[int], *, seed: int) -> list[list[int]]:
        """Return the texts of each batch, in an order that only the seed decides."""
        random = np.random.default_rng(seed)
        order = [texts[index] for index in random.permutation(len(texts))]
        batches: list[list[int]] = []
        for start in range(0, len(order), _SORTED):
            some = sorted(order[start : start + _SORTED], key=self._length)
            batch: list[int] = []
            for text in some:
                if batch and self._length(text) * (len(batch) + 1) > POSITIONS:
                    batches.append(batch)
                    batch = []
                batch.append(text)
            batches.append(batch)
        return [batches[index] for index in random.permutation(len(batches))]

    def batch(self, texts: Sequence[int]) -> Batch:
        positions, width = max(map(self._length, texts)), self._labels.width
        shape = len(texts), positions
        made = Batch(
            torch.zeros(*shape, width, dtype=torch.bfloat16),
            torch.zeros(len(texts), positions + 1, dtype=torch.long),
            torch.tensor([self._length(text) for text in texts]),
            torch.zeros(shape, dtype=torch.bool),
            torch.zeros(shape, dtype=torch.bool),
            torch.full((*shape, TOP), self._count),
            torch.full((*shape, TOP), _NO_LOG),
        )
        for place, index in enumerate(texts):
            text, length, labels = self._labels.texts[index], self._length(index), self._labels.of(index)
            features = torch.from_numpy(np.ascontiguousarray(labels["features"][:length]))
            made.features[place, :length] = features.view(torch.bfloat16)
            made.tokens[place, : length + 1] = torch.tensor(text.tokens)
            made.rows[place, :length] = self._row_of[torch.from_numpy(labels["ids"][1:].astype(np.int64))]
            made.logs[place, :length] = torch.from_numpy(labels["logs"][1:].astype(np.float32))
            for mask, first in ((made.trained, self._common), (made.answered, len(text.prompt))):
                mask[place, max(0, first - 2) : length] = True
        return made

    def _length(self, index: int) -> int:
        return len(self._labels.texts[index].tokens) - 1


def _common_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all of them begin with."""
    pairs = zip(min(prompts), max(prompts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
