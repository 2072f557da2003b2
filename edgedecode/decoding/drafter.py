"""Protocols of drafters: `Drafter`, and extensions for what some offer."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.sampling.probs import UniformSource

__all__ = ["Drafter", "Watching"]


class Drafter(Protocol):
    """Proposes continuations for one session. Its indexes and states are caches, synchronised with `context`.

    Classes that derive from it have no state to begin with, nothing to observe and nothing to close. They have `name`,
    `free` and `nbytes` as class attributes or properties.
    """

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    @property
    def free(self) -> bool:
        """Whether it proposes without a forward pass; free drafters are also asked when their draft may go unused."""
        ...

    def begin(self, context: Sequence[int]) -> None:
        """Start a generation: forget what contradicts `context`, which only grows, in place, until the next begin."""
        return

    def unread(self, context: Sequence[int]) -> int:
        """Return how many tokens of `context` its model must prefill before it can propose; 0 for a free drafter."""
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        """Propose at most `limit` tokens after `context`, which is read-only. The draft may be empty.

        rng: noise of this position, independent of the target's, for drafters that sample.
        plan: limits set by the policy (`floor`, `read_max`), for drafters that run a model; free drafters ignore them.
        """
        ...

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Learn from a round, also when another drafter proposed. `context` already ends with the verdict's tokens.

        Not called for rounds that ask no drafter: the context may grow by several verdicts between two calls.
        """
        return

    def close(self) -> None:
        return


@runtime_checkable
class Watching(Protocol):
    """A drafter that sees, in microseconds and without a proposal, that the text repeats itself."""

    def repeats(self, context: Sequence[int], length: int) -> bool:
        """Return whether the last `length` tokens of `context` occur in it before."""
        ...
