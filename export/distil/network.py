"""What training and measuring need of a network that drafts: a head, or a draft model."""

from abc import abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from .batches import Batch


class Network(nn.Module):
    """Its parameters are those that are trained, and that a step of a draft reads: the embedding is not among them."""

    lm_head: nn.Linear
    depth: int
    """Steps of a draft that differ in training: 1 for a draft model, each of whose steps reads tokens as the first."""

    @property
    def rows(self) -> int:
        """Ids that it proposes."""
        return int(self.lm_head.out_features)

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(each.numel() for each in self.parameters())

    @abstractmethod
    def outputs(self, batch: Batch, table: Tensor, *, depth: int) -> Iterator[Tensor]:
        """Yield what the final norm makes of each position at each depth, [texts, positions, hidden].

        table: the embedding, [ids, hidden].
        """
