"""Ranks guesses from one row of a draft model's logits, and estimates how often the guess of each rank is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.tree import RankRates
from edgedecode.sampling.probs import SharedNoise
from edgedecode.sampling.row_draw import RowDraw
from edgedecode.sampling.sampler import Sampler
from edgedecode.sampling.weights import SamplingOptions

from .rank_rates import RANKS, RankSurvival

RANKED = 4
"""One chain in this many has its rows ranked, to learn the value of trees before trying one. Higher: less overhead."""


class Ranking:
    """Ranks ids for one sequence: by their processed logits if the target is greedy, else by the target's noise.

    The same noise mostly samples the same id from two similar distributions. The following ids are those that it would
    sample if the earlier ones were excluded.
    """

    def __init__(
        self,
        options: SamplingOptions,
        *,
        noise: SharedNoise | None,
        vocabulary_size: int,
        breadth: int = RANKS,
        row_draw: RowDraw | None = None,
    ) -> None:
        self._noise = None if options.greedy else noise
        self._breadth = breadth
        if self._noise is None:  # a greedy row would have one id only
            options = options.ranking(breadth)
        self._sampler = Sampler(options, vocabulary_size=vocabulary_size, row_draw=row_draw)
        self._length = 0

    def follow(self, context: Sequence[int], *, restart: bool = False) -> None:
        """Update the sequence, which has only grown since the last call; `restart`: it may be a different one."""
        if restart:
            self._sampler.begin(context)
        else:
            self._sampler.extend(context[self._length :])
        self._length = len(context)

    def ranked(self, row: FloatArray, path: Sequence[int]) -> list[int]:
        """Return at most `breadth` ids to follow the sequence and `path`, from the row of logits [vocabulary] there."""
        if self._noise is None and not self._sampler.options.penalises:
            ids: list[int] = self._sampler.top(row, self._breadth).tolist()
            return [id for id in ids if row[id] > -np.inf]
        probs = self._sampler.probs(row, path)
        if self._noise is not None:
            return self._noise.ranked_at(probs, self._length + len(path), count=self._breadth)
        best: list[int] = probs.ids[np.argsort(-probs.p, kind="stable")][: self._breadth].tolist()
        return best


class TreeGuesses:
    """A draft model's ranked guesses at the positions of its last draft, and how often those of each rank are right.

    Guesses of chains are scored too, so that the value of trees is known before one is tried.
    """

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._survival = RankSurvival()
        self._guesses: dict[tuple[int, ...], list[int]] = {}
        """Path of drafted tokens from position `_at` on → ids, likeliest first."""
        self._at = -1
        self._chains = 0

    def rates(self) -> RankRates:
        return self._survival.rates()

    def begin(self, context: Sequence[int]) -> None:
        """Start a generation, whose sequence may be a different one."""
        self._ranking.follow(context, restart=True)
        self._at = -1

    def start(self, context: Sequence[int]) -> None:
        """Start a draft after `context`."""
        self._ranking.follow(context)
        self._guesses, self._at = {}, len(context)

    def start_chain(self, context: Sequence[int]) -> bool:
        """Start a chain; return whether to rank its rows, which is done for one chain in `RANKED`."""
        self._chains += 1
        self._at = -1
        if self._chains % RANKED:
            return False
        self.start(context)
        return True

    def rank(self, row: FloatArray, path: Sequence[int]) -> None:
        """Rank the ids that may follow the draft's tokens `path`, from the row of logits [vocabulary] there."""
        self._guesses[tuple(path)] = self._ranking.ranked(row, path)

    def after(self, path: tuple[int, ...]) -> list[int]:
        """Return the ranked ids after `path`; empty if its row was not ranked."""
        return self._guesses.get(path, [])

    def score(self, context: Sequence[int], emitted: tuple[int, ...]) -> None:
        """Score the guesses of the last draft by the emitted tokens, which are the end of the context.

        A draft is scored once, and only if the emitted tokens directly follow its start.
        """
        if self._at == len(context) - len(emitted):
            for depth, token in enumerate(emitted):
                guesses = self._guesses.get(emitted[:depth])
                if guesses is None:
                    break
                self._survival.score(depth, guesses.index(token) if token in guesses else None)
        self._at = -1
