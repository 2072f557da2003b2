"""A text in ids and where the part begins that counts: what an assistant said, after what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgedecode.errors import InputError

__all__ = ["ScoredText", "Split", "split_texts"]

_HELD_OUT = 4
"""One group of so many is held out."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What counts are the tokens from `start` on, at least 1: a draft comes after something."""

    tokens: tuple[int, ...]
    start: int
    ended: bool = False
    """Whether its last token ended it by itself; otherwise it was cut, and that one would not have been drafted."""
    greedy: bool = True
    """Whether these are the target's likeliest tokens, or a text as it was given: what a greedy draft is held to."""
    group: int = 0
    """Texts of one group, answers to one prompt say, are held out together or not at all."""

    def cut(self, length: int) -> ScoredText:
        """Return its first `length` tokens; of one that is longer, nothing counts beyond."""
        if len(self.tokens) <= length:
            return self
        return replace(self, tokens=self.tokens[:length], start=min(self.start, length), ended=False)

    @property
    def scored(self) -> tuple[int, ...]:
        return self.tokens[self.start :]


@dataclass(frozen=True, slots=True)
class Split:
    """Texts that are counted, and texts that tell what the counting is worth."""

    counted: tuple[ScoredText, ...]
    held_out: tuple[ScoredText, ...]

    def halves(self) -> tuple[tuple[ScoredText, ...], tuple[ScoredText, ...]]:
        """Return the held-out texts by groups in turn: those a size is chosen on, and those that tell what it covers.

        A size that was chosen on a text covers it by construction. Where one group is held out both are that one.
        """
        groups = sorted({text.group for text in self.held_out})
        if len(groups) < 2:
            return self.held_out, self.held_out
        chosen = set(groups[::2])
        return (
            tuple(text for text in self.held_out if text.group in chosen),
            tuple(text for text in self.held_out if text.group not in chosen),
        )


def split_texts(texts: Sequence[ScoredText], *, seed: int) -> Split:
    """Hold a quarter of the groups out, the same ones for the same seed. Raises InputError for fewer than two."""
    groups = sorted({text.group for text in texts if text.scored})
    if len(groups) < 2:
        raise InputError("calibrating needs two texts at least, since a part is held out: give more prompts or text")
    count = max(1, len(groups) // _HELD_OUT)
    held = set(np.random.default_rng(seed).permutation(groups)[:count].tolist())
    return Split(
        counted=tuple(text for text in texts if text.group not in held),
        held_out=tuple(text for text in texts if text.group in held and text.scored),
    )
