"""What proposes drafts: the `Drafter` protocol, drafters with heads of one model, drafters of trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from edgedecode.decoding.drafts import Draft, TrimmedVocabulary
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.tree import RankRates
from edgedecode.decoding.verify import Verdict
from edgedecode.sampling.probs import UniformSource

__all__ = ["Branching", "Closable", "Drafter", "HeadDrafter", "head_groups"]


class Drafter(Protocol):
    """Proposes continuations for one session. Its indexes and states are caches: they reconcile to `context`."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    @property
    def free(self) -> bool:
        """Whether it proposes without a pass of an engine: such a drafter may be asked and not be used."""
        ...

    def begin(self, context: Sequence[int]) -> None:
        """A generation starts: forget what contradicts `context`. Until the next begin it only grows, in place."""
        ...

    def unread(self, context: Sequence[int]) -> int:
        """Return how many tokens of `context` its model must read before it can propose; 0 for a free drafter."""
        ...

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        """Propose at most `limit` tokens after `context`, which is read-only. An empty draft is an ordinary answer.

        plan: the policy's wishes (`floor`, `read_max`) to a drafter that can follow them; free ones need not.
        """
        ...

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Learn from a round, also when another drafter proposed. `context` already ends with the verdict's tokens.

        Rounds in which nobody is asked are not told: between two calls the context may grow by more than one verdict.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Closable(Protocol):
    """Something that holds a file or memory."""

    def close(self) -> None: ...


@runtime_checkable
class Branching(Protocol):
    """A drafter that can fill `Plan.shape`, a tree, with its guesses."""

    def rates(self) -> RankRates | None:
        """Return what its guesses are worth, the same object until that moved; None: it was not opened for trees."""
        ...


@runtime_checkable
class HeadDrafter(Protocol):
    """A drafter that drafts with a head of a model."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> object:
        """The model's, the same object for all its heads."""
        ...

    @property
    def vocabulary(self) -> TrimmedVocabulary | None:
        """What it can say; None: everything."""
        ...


def head_groups(drafters: Iterable[object]) -> list[list[HeadDrafter]]:
    """Return the drafters that draft with heads of one model, model by model, where there are several of one."""
    groups: dict[int, list[HeadDrafter]] = {}
    for drafter in drafters:
        if isinstance(drafter, HeadDrafter):
            groups.setdefault(id(drafter.state), []).append(drafter)
    return [group for group in groups.values() if len(group) > 1]
