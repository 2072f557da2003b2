"""Kernel noise: how far the gap between two leading logits moves between the one-row and the many-row kernels.

What the pack's manifest keeps of it is the yardstick for calling two greedy continuations equal: emitted text is
scored again with the one-row kernel, and a token is plain decoding's own when it is the arg-max there, or when the gap
to it lies below the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel, State
from edgedecode.sampling.probs import Probs

__all__ = ["POSITIONS", "KernelNoise", "Rescore", "draw", "measure_noise", "rescore"]

POSITIONS = 2000
_PERCENTILE = 99.9
_LEADING = 8
_DRAWN = 64
_SEGMENT = 250
_WIDTHS = range(2, 17)


@dataclass(frozen=True, slots=True)
class KernelNoise:
    """In logits: the 99.9th percentile and the largest of all positions measured."""

    percentile: float
    largest: float
    positions: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """A sampled continuation: its tokens, and for each row the leading ids and their one-row logits."""

    tokens: list[int]
    leading: IntArray
    logits: FloatArray


def measure_noise(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    ends: Collection[int],
    positions: int = POSITIONS,
    progress: Callable[[int], None] = lambda amount: None,
) -> KernelNoise:
    """Sample after the prompts in turn, one row a pass, then read the same tokens again in passes of 2 to 16 rows.

    The sampling (the 64 likeliest, temperature 1, a fixed seed) makes the text the model's own; an end-of-sequence
    token ends a segment.
    """
    rng = np.random.default_rng(0)
    found: list[npt.NDArray[np.float32]] = []
    done = 0
    for prompt in cycle(prompts):
        length = min(_SEGMENT, positions - done, model.card.context - len(prompt) - max(_WIDTHS))
        segment = _sample(model, prompt, length=length, ends=ends, rng=rng)
        found.append(_spread(_reread(model, prompt, segment) - segment.logits))
        done += len(segment.logits)
        progress(len(segment.logits))
        if done >= positions:
            break
    spreads = np.concatenate(found)
    return KernelNoise(float(np.percentile(spreads, _PERCENTILE)), float(spreads.max()), len(spreads))


def _sample(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    length: int,
    ends: Collection[int],
    rng: np.random.Generator,
) -> _Segment:
    tokens, leading, logits = [prompt[-1]], [], []
    state = _read(model, prompt, room=length)
    try:
        while True:
            row = model.forward(tokens[-1:], state).logits[0, : model.card.vocabulary_size]
            state.keep((0,))
            likely = _likely(row)
            leading.append(likely[:_LEADING])
            logits.append(row[likely[:_LEADING]])
            drawn = int(likely[draw(row[likely], rng.random())])
            if len(leading) >= length or drawn in ends:
                return _Segment(tokens, np.stack(leading), np.stack(logits))
            tokens.append(drawn)
    finally:
        state.close()


def _likely(row: FloatArray) -> IntArray:
    """Return the ids that text is drawn from, the likeliest first: a full softmax takes longer than a small pass."""
    ids = np.argpartition(row, -_DRAWN)[-_DRAWN:] if row.size > _DRAWN else np.arange(row.size)
    return np.asarray(ids[np.argsort(-row[ids], kind="stable")], np.int64)


def draw(row: FloatArray, uniform: float) -> int:
    """Draw an index from the softmax of a row, at temperature 1."""
    return Probs.dense(np.exp(row - row.max(), dtype=np.float64)).draw(uniform)


def _reread(model: LanguageModel, prompt: Sequence[int], segment: _Segment) -> FloatArray:
    """Return the same ids' logits, computed in passes of many rows."""
    found: list[FloatArray] = []
    state = _read(model, prompt, room=len(segment.tokens))
    try:
        start = 0
        for width in cycle(_WIDTHS):
            tokens = segment.tokens[start : start + width]
            if not tokens:
                return np.concatenate(found)
            # A row alone would meet the very kernel it is compared with: it gets a second one, which is dropped.
            read = tokens if len(tokens) > 1 else tokens * 2
            rows = model.forward(read, state, rows="all").logits[: len(tokens)]
            found.append(np.take_along_axis(rows, segment.leading[start : start + len(tokens)], axis=1))
            state.keep(range(len(tokens)))
            start += len(tokens)
    finally:
        state.close()
    raise AssertionError("unreachable")


def _read(model: LanguageModel, prompt: Sequence[int], *, room: int) -> State:
    """Make a state that holds the prompt but for its last token, which the first row reads."""
    state = model.new_state(len(prompt) + room + max(_WIDTHS))
    if len(prompt) > 1:
        model.forward(prompt[:-1], state, rows="none")
        state.keep(range(len(prompt) - 1))
    return state


def _spread(differences: FloatArray) -> npt.NDArray[np.float32]:
    return np.asarray(differences.max(axis=1) - differences.min(axis=1), np.float32)


@dataclass(frozen=True, slots=True)
class Rescore:
    """Of `positions` emitted greedily, `hits` were the arg-max; `gaps` are the others' logit gaps to it, in order."""

    positions: int
    hits: int
    gaps: tuple[float, ...]

    @property
    def largest_gap(self) -> float:
        return max(self.gaps, default=0.0)


def rescore(model: LanguageModel, tokens: Sequence[int], *, prompt_tokens: int) -> Rescore:
    """Feed `tokens` one row a pass after their first `prompt_tokens`, and compare each with the row's arg-max."""
    state = model.new_state(min(len(tokens) + 1, model.card.context))
    gaps: list[float] = []
    hits = 0
    try:
        prefill(model, state, tokens[: prompt_tokens - 1])
        for index in range(prompt_tokens - 1, len(tokens) - 1):
            row = model.forward(tokens[index : index + 1], state).logits[0, : model.card.vocabulary_size]
            state.keep((0,))
            gap = float(row.max() - row[tokens[index + 1]])
            gap = math.inf if math.isnan(gap) else gap  # logits that are no numbers agree with nothing
            hits += gap == 0
            gaps += [gap] if gap else []
    finally:
        state.close()
    return Rescore(positions=len(tokens) - prompt_tokens, hits=hits, gaps=tuple(gaps))
