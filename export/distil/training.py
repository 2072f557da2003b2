"""Trains a network that drafts: its state decides the order, so that training that stopped goes on as if it had not."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic

import torch
from torch import Tensor

from edgedecode.cache import aside
from edgedecode.errors import ExportError

from .batches import Batch, Batches
from .network import Network
from .top_loss import TopLoss

DEEPER_FROM = (0.0, 0.4, 0.7)
"""The shares of a training at which each of them begins: the first steps cost a third, and later depths need what they
learn. SmolLM2-135M, 170,000 tokens of answers, equal time: 1.52 tokens a round, where all depths at once gave 1.39."""
DEPTH_WEIGHT = 0.8
RATE, LEAST_RATE, WARM_UP = 3e-3, 0.03, 0.03
"""The learning rate grows for a share of the steps, and falls linearly to a share of it."""


@torch.autocast("cpu", torch.bfloat16)
def draft_loss(network: Network, table: Tensor, batch: Batch, *, depth: int) -> Tensor:
    """Return the loss per position: the cross entropy of the target's distribution, over the network's ids.

    table: the target's embedding, [ids, hidden].
    """
    total, positions = torch.zeros(()), int(batch.trained.sum())
    for step, output in enumerate(network.outputs(batch, table, depth=depth)):
        chosen = drafted(batch.trained, step)
        rows, logs = batch.rows.flatten(0, 1)[chosen], batch.logs.flatten(0, 1)[chosen]
        known = rows < network.rows
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

    def __init__(self, network: Network, table: Tensor, batches: Batches, texts: Sequence[int]) -> None:
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
            depth = min(self.network.depth, sum(self.done >= share * self.steps for share in DEEPER_FROM))
            self._gradients(batch, depth=depth)
            size = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            if not bool(torch.isfinite(size)):
                raise ExportError(f"the loss of step {self.done + 1} is not finite: the last checkpoint is kept")
            self._optimizer.step()
            self.done += 1
            yield

    def step_seconds(self, batches: Sequence[Sequence[int]]) -> float:
        """Return the mean time of a training's steps: try these batches at each depth, and change nothing."""
        mean = 0.0
        for index, (begin, end) in enumerate(pairwise((*DEEPER_FROM, 1.0))):
            if index < self.network.depth:
                seconds = []
                for texts in batches:
                    started = monotonic()
                    self._gradients(texts, depth=index + 1)
                    seconds.append(monotonic() - started)
            mean += (end - begin) * median(seconds)
        self._optimizer.zero_grad()
        return mean

    def save(self, path: Path) -> None:
        """Write the state in one step. Raises ExportError for a full disk."""
        state: dict[str, object] = {"done": self.done, "steps": self.steps}
        state |= {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        try:
            with aside(path) as fresh:
                torch.save(state, fresh)
        except RuntimeError as error:  # what torch makes of an OSError
            raise ExportError(f"{path} cannot be written: {str(error).splitlines()[0]}") from None

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

    def _gradients(self, texts: Sequence[int], *, depth: int) -> None:
        draft_loss(self.network, self._table, self._batches.batch(texts), depth=depth).backward()

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
