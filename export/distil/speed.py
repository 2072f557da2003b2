"""The speed-up of a pack's drafts on texts that were held out, in one run: plain and drafted answers in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from time import perf_counter

from edgedecode import Pair, SamplingOptions, SessionOptions, load
from edgedecode.errors import EdgeDecodeError

from .texts import CONTEXT, Text

_TOKENS = 96
_WARM_UP = 3
"""Texts by which the scheduler learns costs and acceptance first."""


def speed_up(root: Path, texts: Sequence[Text], *, advance: Callable[[int], None]) -> float:
    """Return the mean of the texts' speeds with the pack's drafts over their speeds without, decoding alone.

    Raises EdgeDecodeError if an answer differs, which no draft may cause.
    """
    with closing(load(root)) as pair:
        for text in texts[:_WARM_UP]:
            _answer(pair, text, drafter=None)
        ratios = []
        for text in texts:
            (plain, seconds), (drafted, less) = (_answer(pair, text, drafter=name) for name in ("none", None))
            if plain != drafted:
                raise EdgeDecodeError("an answer with drafts differs from the one without: report this")
            if less:
                ratios.append(seconds / less)
            advance(1)
        return mean(ratios)


def _answer(pair: Pair, text: Text, *, drafter: str | None) -> tuple[tuple[int, ...], float]:
    """Return a greedy answer and the seconds from its first tokens to its end."""
    options = SessionOptions(sampling=SamplingOptions(), drafter=drafter, context=CONTEXT)
    with pair.session(options) as session:
        started, tokens = 0.0, list[int]()
        for chunk in session.complete(text.prompt, max_tokens=_TOKENS):
            started = started or perf_counter()
            tokens += chunk.tokens
        return tuple(tokens), perf_counter() - started
