"""Scores proposals that were not used: offers of free drafters, and drafts of another head of the same model.

Full information (HedgeSpec, 2510.20064): a drafter earns its score also in rounds in which another one drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .drafts import Draft, TrimmedVocabulary
from .policy import Score
from .verify import Outcome, Verdict

__all__ = ["OpenOffers", "would_have"]

_MOST = 4
"""Open offers kept per drafter; with more, the oldest is scored by what it matched so far."""


class _Open(NamedTuple):
    at: int
    draft: Draft


class OpenOffers:
    """Chains that were proposed at a position and are not contradicted yet."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Open]] = {}

    def add(self, drafter: str, draft: Draft, *, at: int) -> None:
        """Hold a proposal for the tokens from position `at` on."""
        self._open.setdefault(drafter, []).append(_Open(at, draft))

    def settle(self, tokens: Sequence[int]) -> list[Score]:
        """Return the scores of offers that `tokens` decides: wholly matched, contradicted, or crowded out.

        What is crowded out counts with the tokens it had matched as its length: censored, as the rest is unknown.
        """
        scores: list[Score] = []
        for drafter, offers in self._open.items():
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
        """Forget every offer: the text went elsewhere."""
        self._open.clear()


def _common(drafted: Sequence[int], tokens: Sequence[int], *, at: int) -> int:
    most = min(len(drafted), len(tokens) - at)
    return next((index for index in range(most) if drafted[index] != tokens[at + index]), most)


def would_have(verdict: Verdict, head: TrimmedVocabulary | None) -> tuple[int, int]:
    """Return the length of a chain that another head of the same model would have drafted, and what of it accepted.

    Heads give the same logits to the ids they share, so they draft the same token wherever the best one of the larger
    vocabulary is in both. Accepted tokens were the best: a head that has them drafts them, one that lacks one fails
    there. A token of the target's that the drafting head lacks says nothing of a head that has it: the score is
    censored there. None: the head has every id.
    """
    draft = verdict.draft
    right = verdict.tokens[: verdict.accepted]
    missing = None if head is None else next((at for at, token in enumerate(right) if token not in head), None)
    if missing is not None:
        return len(draft), missing
    known = draft.vocabulary
    said = verdict.tokens[-1]
    unknown = verdict.outcome is Outcome.CORRECTION and known is not None and said not in known
    if unknown and (head is None or said in head):
        return verdict.accepted, verdict.accepted
    return len(draft), verdict.accepted
