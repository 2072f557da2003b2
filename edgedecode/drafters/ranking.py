"""Several guesses from one row of a draft model's logits, likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.sampling import Sampler

from .source import DraftSetting

__all__ = ["Ranking"]


class Ranking:
    """Ranks ids for one sequence: by their processed logits where the target is greedy, else by the target's noise.

    Of two near distributions the same noise mostly draws the same id; the next ids are what it would draw without it.
    """

    def __init__(self, setting: DraftSetting, *, breadth: int) -> None:
        self._noise = None if setting.sampling.greedy else setting.noise
        self._breadth = breadth
        options = setting.sampling
        if self._noise is None:  # one id would be left of a greedy row
            options = replace(options, temperature=1.0, top_k=breadth, top_p=1.0, min_p=0.0)
        self._sampler = Sampler(options, vocabulary_size=setting.vocabulary_size, row_draw=setting.row_draw)
        self._length = 0

    def follow(self, context: Sequence[int], *, anew: bool = False) -> None:
        """Take note of the sequence, which only grew since the last call; `anew`: it may be another one."""
        if anew:
            self._sampler.begin(context)
        else:
            self._sampler.extend(context[self._length :])
        self._length = len(context)

    def ranked(self, row: FloatArray, path: Sequence[int]) -> list[int]:
        """Return at most `breadth` ids for the place after the sequence and `path`, from the row [vocabulary] there."""
        if self._noise is None and self._sampler.options.repetition_penalty == 1:
            ids: list[int] = self._sampler.top(row, self._breadth).tolist()
            return [id for id in ids if row[id] > -np.inf]
        probs = self._sampler.probs(row, path)
        if self._noise is not None:
            return self._noise.ranked_at(probs, self._length + len(path), count=self._breadth)
        best: list[int] = probs.ids[np.argsort(-probs.p, kind="stable")][: self._breadth].tolist()
        return best
