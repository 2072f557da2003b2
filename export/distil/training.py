"""Trains a head: batches in an order that its state decides, so that training that stopped goes on as if it had not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from edgedecode.arrays import IntArray
from edgedecode.errors import ExportError

from .head_network import HeadNetwork
from .labels import TOP, Labels
from .texts import Text
from .top_loss import TopLoss

DEPTH = 3
"""Steps of a draft that are trained, each on the outputs of the one before (2503.01840, §3.2)."""
DEEPER_FROM = (0.0, 0.4, 0.7)
"""The shares of a training at which each of them begins: the first steps cost a third, and later depths need what they
learn. SmolLM2-135M, 170,000 tokens of answers, equal time: 1.52 tokens a round, where all depths at once gave 1.39."""
MEAN_DEPTH = sum(1 - share for share in DEEPER_FROM)
"""Of a step, over a training."""
DEPTH_WEIGHT = 0.8
RATE, LEAST_RATE, WARM_UP = 3e-3, 0.03, 0.03
"""The learning rate grows for a share of the steps, and falls linearly to a share of it."""
POSITIONS = 2048
"""Of a batch, padding included."""
_SORTED = 256
"""Texts that are sorted by length together, so that batches have little padding."""
_NO_LOG = -30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, [texts, positions, ...]; a position's values are those of the token after its next one."""

    features: Tensor
    next_tokens: Tensor
    lengths: Tensor
    trained: Tensor
    """Positions whose token after the next is beyond what all prompts begin with."""
    answered: Tensor
    """Those whose token after the next is in the answer."""
    rows: Tensor
    """The head's rows of the target's likeliest tokens; the number of rows where it has none."""
    logs: Tensor


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
        positions, width = max(map(self._length, texts)), self._labels.rows["features"].shape[1]
        shape = len(texts), positions
        made = Batch(
            torch.zeros(*shape, width, dtype=torch.bfloat16),
            torch.zeros(shape, dtype=torch.long),
            torch.tensor([self._length(text) for text in texts]),
            torch.zeros(shape, dtype=torch.bool),
            torch.zeros(shape, dtype=torch.bool),
            torch.full((*shape, TOP), self._count),
            torch.full((*shape, TOP), _NO_LOG),
        )
        for place, index in enumerate(texts):
            text, length, labels = self._labels.texts[index], self._length(index), self._labels.of(index)
            features = torch.from_numpy(labels["features"][:length].copy())
            made.features[place, :length] = features.view(torch.bfloat16)
            made.next_tokens[place, :length] = torch.tensor(text.tokens[1:])
            made.rows[place, :length] = self._row_of[torch.from_numpy(labels["ids"][1:].astype(np.int64))]
            made.logs[place, :length] = torch.from_numpy(labels["logs"][1:].astype(np.float32))
            for mask, first in ((made.trained, self._common), (made.answered, len(text.prompt))):
                mask[place, max(0, first - 2) : length] = True
        return made

    def _length(self, index: int) -> int:
        return len(self._labels.texts[index].tokens) - 1


@torch.autocast("cpu", torch.bfloat16)
def head_loss(network: HeadNetwork, table: Tensor, batch: Batch, *, depth: int = DEPTH) -> Tensor:
    """Return the loss per position: the cross entropy of the target's distribution, over the head's ids.

    table: the target's embedding, [ids, hidden].
    """
    total, positions = torch.zeros(()), int(batch.trained.sum())
    outputs = network.depths(batch.features, embedding(batch.next_tokens, table), batch.lengths, depth=depth)
    for step, output in enumerate(outputs):
        chosen = drafted(batch.trained, step)
        rows, logs = batch.rows.flatten(0, 1)[chosen], batch.logs.flatten(0, 1)[chosen]
        known = rows < network.sizes.rows
        loss = TopLoss.apply(output.flatten(0, 1)[chosen], network.lm_head.weight, rows * known, logs.exp() * known)
        total = total + DEPTH_WEIGHT**step * loss / positions
    return total


def drafted(positions: Tensor, depth: int) -> Tensor:
    """Return the indices of those of the positions that a draft reaches at this depth."""
    reached = positions.clone()
    reached[:, :depth] = False
    return reached.flatten().nonzero().squeeze(-1)


class Training:
    """The state of a training: the network, its optimizer, and how many of its steps are done."""

    def __init__(self, network: HeadNetwork, table: Tensor, batches: Batches, texts: Sequence[int]) -> None:
        self.network, self._table, self._batches, self._texts = network, table, batches, texts
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.done, self.steps = 0, 0
        """Steps done, and all of them; 0: not decided yet."""

    def run(self) -> Iterator[None]:
        """Do the steps that are left; yield after each. Raises ExportError for one that is not finite."""
        for batch in self._left():
            for group in self._optimizer.param_groups:
                group["lr"] = RATE * self._rate()
            self._optimizer.zero_grad()
            self._gradients(batch)
            size = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            if not bool(torch.isfinite(size)):
                raise ExportError(f"the loss of step {self.done + 1} is not finite: the last checkpoint is kept")
            self._optimizer.step()
            self.done += 1
            yield

    def try_batch(self, texts: Sequence[int]) -> None:
        """Compute what a step would change, and change nothing."""
        self._gradients(texts)
        self._optimizer.zero_grad()

    def save(self, path: Path) -> None:
        """Write the state in one step. Raises ExportError for a full disk."""
        state: dict[str, object] = {"done": self.done, "steps": self.steps}
        written = path.with_suffix(".part")
        state |= {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        try:
            torch.save(state, written)
        except RuntimeError as error:  # what torch makes of an OSError
            written.unlink(missing_ok=True)
            raise ExportError(f"{path} cannot be written: {str(error).splitlines()[0]}") from None
        written.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a state. Raises ExportError for a damaged file."""
        try:
            state = torch.load(path, weights_only=True)
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.done, self.steps = state["done"], state["steps"]
        except Exception as error:  # torch's errors share no base class
            raise ExportError(
                f"{path} is damaged ({type(error).__name__}): remove it to train from the texts"
            ) from None

    def _gradients(self, texts: Sequence[int]) -> None:
        depth = sum(self.done >= share * self.steps for share in DEEPER_FROM)
        head_loss(self.network, self._table, self._batches.batch(texts), depth=depth).backward()

    def _rate(self) -> float:
        share = self.done / self.steps
        return min(1.0, (share + 1 / self.steps) / WARM_UP) * (LEAST_RATE + (1 - LEAST_RATE) * (1 - share))

    def _left(self) -> Iterator[list[int]]:
        """Yield the batches from the first that is not done."""
        number, epoch = 0, 0
        while number < self.steps:
            batches = self._batches.epoch(self._texts, seed=epoch)
            for batch in batches[: self.steps - number]:
                if number >= self.done:
                    yield batch
                number += 1
            epoch += 1


def frequent_ids(texts: Sequence[Text], *, rows: int, vocabulary_size: int) -> IntArray:
    """Return the ids that answers use most, ascending; of ids that none uses the smallest, whose merges came first."""
    counts = np.zeros(vocabulary_size, np.int64)
    for text in texts:
        np.add.at(counts, np.array(text.answer), 1)
    order = np.lexsort((np.arange(vocabulary_size), -counts))
    return np.sort(order[:rows])


def _common_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all of them begin with."""
    pairs = zip(min(prompts), max(prompts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
