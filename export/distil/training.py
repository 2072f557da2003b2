"""Trains a network that drafts: its state decides the order, so that training that stopped goes on as if it had not."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

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
_KEPT = ("done", "steps", "seconds", "measured", "best_tokens", "best_counts")
"""What is saved beside the weights."""


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
        """Steps done, and all that are planned."""
        self.seconds: tuple[float, ...] = ()
        """What a step was planned to take at each depth."""
        self.measured: list[tuple[int, float]] = []
        """Tokens read, and tokens of a round then, since all depths are trained."""
        self.best_tokens, self.best_counts = 0, dict[str, Any]()
        """Tokens read at the best measurement, and the fields of its acceptance."""
        self._end = 0
        """All steps, as far as the time allows them."""

    @property
    def depth(self) -> int:
        """The steps of a draft that are trained now."""
        return min(self.network.depth, sum(self.done >= share * self._end for share in DEEPER_FROM))

    def run(self, *, until: float = inf) -> Iterator[None]:
        """Do the steps that are left; yield after each. Raises ExportError for one that is not finite.

        until: when it ends, by `monotonic`. Where steps take longer than planned, there will be fewer: the learning
        rate and the depths follow what is left, so that a training on a busy machine is shorter and not broken off.
        """
        self._end, planned, began = self.steps, 0.0, monotonic()
        for batch in self._left():
            for group in self._optimizer.param_groups:
                group["lr"] = RATE * self._rate()
            self._optimizer.zero_grad()
            depth = self.depth
            self._gradients(batch, depth=depth)
            size = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            if not bool(torch.isfinite(size)):
                raise ExportError(
                    f"the loss of step {self.done + 1} is not finite: the folder keeps the head or draft model of its "
                    f"best line, and `--init` starts from it"
                )
            self._optimizer.step()
            self.done, planned = self.done + 1, planned + self.seconds[depth - 1]
            yield
            if until < inf:
                now = monotonic()
                self._end = self.steps_in((until - now) * planned / (now - began))
        self.steps = self._end = self.done

    def plan(self, batches: Sequence[Sequence[int]]) -> None:
        """Time a step at each depth: try these batches, and change nothing."""
        found = []
        for depth in range(1, self.network.depth + 1):
            seconds = []
            for texts in batches:
                started = monotonic()
                self._gradients(texts, depth=depth)
                seconds.append(monotonic() - started)
            found.append(median(seconds))
        self._optimizer.zero_grad()
        self.seconds = tuple(found)

    def seconds_of(self, steps: int) -> float:
        """Return the seconds that the rest of the training takes if it has this many steps in all."""
        shares = pairwise((*DEEPER_FROM[: self.network.depth], 1.0))
        return sum(
            seconds * max(0.0, end * steps - max(self.done, begin * steps))
            for seconds, (begin, end) in zip(self.seconds, shares, strict=True)
        )

    def steps_in(self, left: float) -> int:
        """Return how many steps fit in all, at most those planned, if the rest may take `left` seconds."""
        return self.done + bisect_right(range(self.done + 1, self.steps + 1), left, key=self.seconds_of)

    def save(self, path: Path) -> None:
        """Write the state in one step. Raises ExportError for a full disk."""
        state: dict[str, object] = {name: getattr(self, name) for name in _KEPT}
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
            for name in _KEPT:
                setattr(self, name, state[name])
        except Exception as error:  # torch's errors share no base class
            raise ExportError(
                f"{path} is damaged ({type(error).__name__}): remove it to train from the texts"
            ) from None

    def _gradients(self, texts: Sequence[int], *, depth: int) -> None:
        draft_loss(self.network, self._table, self._batches.batch(texts), depth=depth).backward()

    def _rate(self) -> float:
        share = self.done / self._end
        return min(1.0, (share + 1 / self._end) / WARM_UP) * (LEAST_RATE + (1 - LEAST_RATE) * (1 - share))

    def _left(self) -> Iterator[list[int]]:
        """Yield the batches from the first that is not done."""
        number = 0
        for epoch in count():
            for batch in self._batches.epoch(self._texts, seed=epoch):
                if number >= self._end:
                    return
                if number >= self.done:
                    yield batch
                number += 1
