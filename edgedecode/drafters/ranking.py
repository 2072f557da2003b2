"""Several guesses from one row of a draft model's logits, likeliest first, and how often which of them was right."""

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

__all__ = ["RANKED", "Ranking", "TreeGuesses"]

RANKED = 4
"""The rows of one chain in this many are ranked, to learn the value of trees before one is tried. More: less work."""


class Ranking:
    """Ranks ids for one sequence: by their processed logits where the target is greedy, else by the target's noise.

    Of two near distributions the same noise mostly draws the same id; the next ids are what it would draw without it.
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
        if self._noise is None:  # one id would be left of a greedy row
            options = options.ranking(breadth)
        self._sampler = Sampler(options, vocabulary_size=vocabulary_size, row_draw=row_draw)
        self._length = 0

    def follow(self, context: Sequence[int], *, restart: bool = False) -> None:
        """Take note of the sequence, which only grew since the last call; `restart`: it may be another one."""
        if restart:
            self._sampler.begin(context)
        else:
            self._sampler.extend(context[self._length :])
        self._length = len(context)

    def ranked(self, row: FloatArray, path: Sequence[int]) -> list[int]:
        """Return at most `breadth` ids for the place after the sequence and `path`, from the row [vocabulary] there."""
        if self._noise is None and not self._sampler.options.penalises:
            ids: list[int] = self._sampler.top(row, self._breadth).tolist()
            return [id for id in ids if row[id] > -np.inf]
        probs = self._sampler.probs(row, path)
        if self._noise is not None:
            return self._noise.ranked_at(probs, self._length + len(path), count=self._breadth)
        best: list[int] = probs.ids[np.argsort(-probs.p, kind="stable")][: self._breadth].tolist()
        return best


class TreeGuesses:
    """What a draft model thinks likeliest at the places of its last draft, and how often which guess was right.

    The target judges the guesses of chains too, so that it is known what a tree would be worth before one is tried.
    """

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._survival = RankSurvival()
        self._guesses: dict[tuple[int, ...], list[int]] = {}
        """Path of drafted tokens → ids, likeliest first, from the place `_at` on."""
        self._at = -1
        self._chains = 0

    def rates(self) -> RankRates:
        return self._survival.rates()

    def begin(self, context: Sequence[int]) -> None:
        """A generation starts, of a sequence that may be another one."""
        self._ranking.follow(context, restart=True)
        self._at = -1

    def start(self, context: Sequence[int]) -> None:
        """A draft after `context` starts."""
        self._ranking.follow(context)
        self._guesses, self._at = {}, len(context)

    def start_chain(self, context: Sequence[int]) -> bool:
        """A chain starts; tell whether its rows are to be ranked, as those of one chain in `RANKED` are."""
        self._chains += 1
        self._at = -1
        if self._chains % RANKED:
            return False
        self.start(context)
        return True

    def rank(self, row: FloatArray, path: Sequence[int]) -> None:
        """Rank what follows the draft's tokens `path`, from the row of logits [vocabulary] there."""
        self._guesses[tuple(path)] = self._ranking.ranked(row, path)

    def after(self, path: tuple[int, ...]) -> list[int]:
        """Return the ids ranked there, none where no row was."""
        return self._guesses.get(path, [])

    def score(self, context: Sequence[int], emitted: tuple[int, ...]) -> None:
        """Count the guesses of the last draft that the emitted tokens, with which the context ends, confirm or refute.

        A draft is scored once, and not where tokens that came after it were never shown.
        """
        if self._at == len(context) - len(emitted):
            for depth, token in enumerate(emitted):
                guesses = self._guesses.get(emitted[:depth])
                if guesses is None:
                    break
                self._survival.score(depth, guesses.index(token) if token in guesses else None)
        self._at = -1
