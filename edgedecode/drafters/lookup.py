"""Turns a function that looks up continuations of the context into a drafter."""

from collections.abc import Sequence
from typing import Protocol

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.sampling.probs import UniformSource

from .source import DrafterSource, DraftSetting


class Lookup(Protocol):
    """A function that drafts without a model; entry points of the group `edgedecode.lookups` name such functions."""

    def __call__(self, context: Sequence[int], limit: int, /) -> Sequence[int]:
        """Return ids that may follow `context`, which is read-only. At most `limit` are used; there may be none.

        It is called every round, from several sessions and threads: the result must depend on the context only.
        """
        ...


class LookupSource(DrafterSource):
    """Opens drafters that call one lookup function."""

    def __init__(self, name: str, lookup: Lookup) -> None:
        self.name = name
        self._lookup = lookup

    def open(self, setting: DraftSetting) -> Drafter:
        return _LookupDrafter(self.name, self._lookup, ends=setting.ends)


class _LookupDrafter(Drafter):
    """Proposes what the lookup returns, up to the limit and the first end token."""

    name = ""
    free = True
    nbytes = 0

    def __init__(self, name: str, lookup: Lookup, *, ends: frozenset[int]) -> None:
        self.name = name
        self._lookup = lookup
        self._ends = ends

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        if limit <= 0:
            return EMPTY_DRAFT
        tokens = tuple(int(token) for token in self._lookup(context, limit)[:limit])
        end = next((place + 1 for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        return Draft(tokens[:end], source=self.name) if tokens else EMPTY_DRAFT
