"""Scores proposals of free drafters that were not used.

Full information (HedgeSpec, 2510.20064): a drafter earns its score also in rounds in which another one drafted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .drafts import Draft
from .policy import Score

_MOST = 4
"""Open offers kept per drafter; beyond that, the oldest is scored by the tokens that it matched so far."""


class _Open(NamedTuple):
    at: int
    draft: Draft


class OpenOffers:
    """Chains that were proposed at a position and that the text has not contradicted yet."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Open]] = {}

    def add(self, drafter: str, draft: Draft, *, at: int) -> None:
        """Hold a proposal for the tokens from position `at` on."""
        self._open.setdefault(drafter, []).append(_Open(at, draft))

    def settle(self, tokens: Sequence[int]) -> list[Score]:
        """Return the scores of the offers that `tokens` matched completely or contradicted, and of evicted ones.

        An evicted offer counts with its matched tokens as its length: a censored score, as the rest is unknown.
        """
        scores: list[Score] = []
        for drafter, offers in self._open.items():
            if not offers:
                continue
            waiting: list[_Open] = []
            for index, offer in enumerate(offers):
                known = len(tokens) - offer.at
                matched = _common(offer.draft.tokens, tokens, at=offer.at)
                length = len(offer.draft)
                if matched == min(known, length) < length:
                    if len(offers) - index <= _MOST:
                        waiting.append(offer)
                        continue
                    length = matched
                scores.append(Score(drafter, length, matched, offer.draft.match))
            offers[:] = waiting
        return scores

    def clear(self) -> None:
        """Forget every offer, because the text continues differently."""
        self._open.clear()


def _common(drafted: Sequence[int], tokens: Sequence[int], *, at: int) -> int:
    most, matched = min(len(drafted), len(tokens) - at), 0
    while matched < most and drafted[matched] == tokens[at + matched]:
        matched += 1
    return matched
