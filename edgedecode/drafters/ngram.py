"""Drafts by looking the context's end up in the context itself (prompt lookup; Aggressive Decoding, 2304.04487)."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import finalize

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.probs import UniformSource
from edgedecode.decoding.verify import Verdict
from edgedecode.memory import Lease

from .source import DraftSetting

__all__ = ["NgramDrafter", "NgramSource"]

_SHORTEST_MATCH = 2
_LONGEST_MATCH = 32
_CANDIDATES = 32
"""Earlier places compared per proposal; both bound the cost in repetitive text."""
_ENTRY_NBYTES = 200
"""A dictionary entry with its key, a list slot and a token slot, measured on CPython 3.11 with 64-bit keys."""


class NgramSource:
    """Opens an n-gram drafter; needs no model."""

    name = "ngram"
    needs_model = False
    needs: Sequence[str] = ()

    def open(self, setting: DraftSetting) -> Drafter:
        nbytes = setting.capacity * _ENTRY_NBYTES
        return NgramDrafter(setting.budget.reserve("n-gram index", nbytes), ends=setting.ends)

    def close(self) -> None:
        """Nothing is shared."""


class NgramDrafter:
    """Follows the earlier place with the longest match, the most recent among equals.

    The draft's length doubles with every matched token beyond the first: short matches are chance, long ones copies.
    """

    name = "ngram"
    free = True

    def __init__(self, lease: Lease, *, ends: frozenset[int] = frozenset()) -> None:
        self._lease = lease
        finalize(self, lease.release)  # a drafter that is dropped, not closed
        self._ends = ends
        self._tokens: list[int] = []
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []
        """Per position: the previous position with the same pair, -1 for none."""

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def begin(self, context: Sequence[int]) -> None:
        interrupted = len(self._earlier) != len(self._tokens)
        if interrupted or self._tokens != list(context[: len(self._tokens)]):
            self._tokens.clear()
            self._latest.clear()
            self._earlier.clear()

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._index(context)
        place, matched = self._longest_match(context)
        if matched < _SHORTEST_MATCH:
            return EMPTY_DRAFT
        length = min(limit, 2 ** (matched - 1), len(context) - 1 - place)
        tokens = context[place + 1 : place + 1 + length]
        end = next((index + 1 for index, token in enumerate(tokens) if token in self._ends), length)
        return Draft(tuple(tokens[:end]), source=self.name, match=matched)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Nothing to learn: the next proposal indexes what was emitted."""

    def close(self) -> None:
        self._lease.release()

    def _index(self, context: Sequence[int]) -> None:
        """Index every pair that ends before the context's last token."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        for place in range(len(tokens), len(context) - 1):
            tokens.append(context[place])
            pair = (context[place - 1] << 32 | context[place]) if place else -1
            earlier.append(latest.get(pair, -1))
            latest[pair] = place

    def _longest_match(self, context: Sequence[int]) -> tuple[int, int]:
        """Return the place where the best earlier match ends, and its length in tokens."""
        if len(context) < _SHORTEST_MATCH:
            return -1, 0
        place = self._latest.get(context[-2] << 32 | context[-1], -1)
        best_place, best = -1, 0
        for _ in range(_CANDIDATES):
            if place < 0 or best == _LONGEST_MATCH:
                break
            matched = _match_length(context, place, longer_than=best)
            if matched > best:
                best_place, best = place, matched
            place = self._earlier[place]
        return best_place, best


def _match_length(context: Sequence[int], place: int, *, longer_than: int) -> int:
    """Count equal tokens backwards from `place` and from the context's end; 0 if it cannot beat `longer_than`."""
    last = len(context) - 1
    if place < longer_than or context[place - longer_than] != context[last - longer_than]:
        return 0
    matched = 0
    most = min(place + 1, _LONGEST_MATCH)
    while matched < most and context[place - matched] == context[last - matched]:
        matched += 1
    return matched
