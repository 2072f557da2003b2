"""How many tokens a round gives at each draft length, counted over the rounds that decoding would have made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.decoding.model import LanguageModel

from .scored_text import ScoredText
from .teacher_forcing import BoolArray, Nested, TextHits, forced_hits

__all__ = ["LENGTHS", "Acceptance", "accepted_by_round", "measure_acceptance"]

LENGTHS = tuple(range(1, 9))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one size of vocabulary is worth on some texts."""

    tokens: int
    coverage: float
    """Share of the tokens that it has."""
    per_round: dict[int, float]
    """Draft length → tokens a round, the target's own included."""


def measure_acceptance(
    model: LanguageModel,
    texts: Sequence[ScoredText],
    nested: Nested,
    *,
    advance: Callable[[int], None] = lambda amount: None,
) -> tuple[Acceptance, ...]:
    """Read texts with the whole draft; return what each size is worth on them, the whole vocabulary last.

    Coverage counts every text. Acceptance is a greedy draft's, so it counts what is greedy, or was given.
    """
    scored = [text.scored for text in texts]
    coverage = nested.coverage(scored)
    hits = []
    for text in texts:
        if text.greedy:
            hits.append(forced_hits(model, text, nested))
        advance(1)
    return tuple(
        Acceptance(
            tokens=sum(map(len, scored)),
            coverage=float(share),
            per_round={length: _tokens_per_round(hits, column, length) for length in LENGTHS},
        )
        for column, share in enumerate(coverage)
    )


def accepted_by_round(hits: BoolArray, *, length: int, ended: bool) -> Iterator[int]:
    """Yield what each round accepts where one text is decoded with drafts of `length`; hits [tokens]: where one hits.

    The first token comes with the prompt's own pass, which carries no draft. A text that did not end by itself was cut
    at a limit, whose last token is the target's own.
    """
    total, at = len(hits), 1
    runs = _runs(hits)
    while at < total:
        accepted = min(length, total - at - (0 if ended else 1), runs[at])
        yield accepted
        at += accepted + 1


def _tokens_per_round(texts: Sequence[TextHits], column: int, length: int) -> float:
    """Return tokens over rounds; 1, what plain decoding has, where there is no round."""
    rounds = tokens = 0
    for text in texts:
        count = sum(1 for _ in accepted_by_round(text.hits[:, column], length=length, ended=text.ended))
        rounds += count
        tokens += len(text.hits) - 1 if count else 0
    return tokens / rounds if rounds else 1.0


def _runs(hits: BoolArray) -> list[int]:
    """Return for every place how many hits follow one another from there on."""
    places = np.arange(len(hits))
    misses = np.where(hits, len(hits), places)
    following = np.minimum.accumulate(misses[::-1])[::-1]
    runs: list[int] = (following - places).tolist()
    return runs
