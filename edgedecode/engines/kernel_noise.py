"""Measures kernel noise: how much the gap between two top logits differs between one-row and many-row kernels.

The manifest stores it as the tolerance for comparing greedy continuations. Emitted text is rescored with the one-row
kernel; a token matches baseline decoding if it is the arg-max there, or if its gap to the arg-max is below the noise.
"""

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

POSITIONS = 2000
_PERCENTILE = 99.9
_COMPARED = 8
"""Top logits of a row that are compared."""
_CANDIDATES = 64
"""Top tokens of a row that sampling chooses from."""
_SEGMENT = 250
"""Most tokens sampled after one prompt."""
_WIDTHS = range(2, 17)


@dataclass(frozen=True, slots=True)
class KernelNoise:
    """In logits: the 99.9th percentile and the maximum over all measured positions."""

    percentile: float
    largest: float
    positions: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """A sampled continuation: its tokens, and for each row the top ids and their one-row logits."""

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
    """Sample a continuation of each prompt in one-row passes, then recompute its logits in passes of 2 to 16 rows.

    The text is the model's own: sampled from the 64 most likely tokens at temperature 1 with a fixed seed. An
    end-of-sequence token ends a segment.
    """
    rng = np.random.default_rng(0)
    found: list[npt.NDArray[np.float32]] = []
    done = 0
    for prompt in cycle(prompts):
        length = min(_SEGMENT, positions - done, model.card.context - len(prompt) - max(_WIDTHS))
        segment = _sample(model, prompt, length=length, ends=ends, rng=rng)
        found.append(_spread(_many_row_logits(model, prompt, segment) - segment.logits))
        done += len(segment.logits)
        progress(len(segment.logits))
        if done >= positions:
            break
    spreads = np.concatenate(found)
    return KernelNoise(float(np.percentile(spreads, _PERCENTILE)), float(spreads.max()), len(spreads))


def _sample(
    model: LanguageModel, prompt: Sequence[int], *, length: int, ends: Collection[int], rng: np.random.Generator
) -> _Segment:
    tokens, leading, logits = [prompt[-1]], [], []
    state = _prefilled(model, prompt, room=length)
    try:
        while True:
            row = model.forward(tokens[-1:], state).logits[0, : model.card.vocabulary_size]
            state.keep((0,))
            candidates = _candidates(row)
            leading.append(candidates[:_COMPARED])
            logits.append(row[candidates[:_COMPARED]])
            sampled = int(candidates[draw(row[candidates], rng.random())])
            if len(leading) >= length or sampled in ends:
                return _Segment(tokens, np.stack(leading), np.stack(logits))
            tokens.append(sampled)
    finally:
        state.close()


def _candidates(row: FloatArray) -> IntArray:
    """Return the most likely ids, best first. A softmax over the full row takes longer than a small model's pass."""
    ids = np.argpartition(row, -_CANDIDATES)[-_CANDIDATES:] if row.size > _CANDIDATES else np.arange(row.size)
    return np.asarray(ids[np.argsort(-row[ids], kind="stable")], np.int64)


def draw(row: FloatArray, uniform: float) -> int:
    """Sample an index from the softmax of a row, at temperature 1."""
    return Probs.dense(np.exp(row - row.max(), dtype=np.float64)).draw(uniform)


def _many_row_logits(model: LanguageModel, prompt: Sequence[int], segment: _Segment) -> FloatArray:
    """Return the logits of the segment's top ids, computed in passes of many rows."""
    found: list[FloatArray] = []
    state = _prefilled(model, prompt, room=len(segment.tokens))
    try:
        start = 0
        for width in cycle(_WIDTHS):
            tokens = segment.tokens[start : start + width]
            if not tokens:
                return np.concatenate(found)
            # A single last row would use the one-row kernel it is compared with: it is doubled, the copy dropped.
            padded = tokens if len(tokens) > 1 else tokens * 2
            rows = model.forward(padded, state, rows="all").logits[: len(tokens)]
            found.append(np.take_along_axis(rows, segment.leading[start : start + len(tokens)], axis=1))
            state.keep(range(len(tokens)))
            start += len(tokens)
    finally:
        state.close()
    raise AssertionError("unreachable")


def _prefilled(model: LanguageModel, prompt: Sequence[int], *, room: int) -> State:
    """Return a state that holds the prompt without its last token, which is the input of the first row."""
    state = model.new_state(len(prompt) + room + max(_WIDTHS))
    if len(prompt) > 1:
        model.forward(prompt[:-1], state, rows="none")
        state.keep(range(len(prompt) - 1))
    return state


def _spread(differences: FloatArray) -> npt.NDArray[np.float32]:
    return np.asarray(differences.max(axis=1) - differences.min(axis=1), np.float32)


@dataclass(frozen=True, slots=True)
class Rescore:
    """Of `positions` greedy tokens, `hits` were the arg-max; `gaps` are the logit gaps of the others, in order."""

    positions: int
    hits: int
    gaps: tuple[float, ...]

    @property
    def largest_gap(self) -> float:
        return max(self.gaps, default=0.0)


def rescore(model: LanguageModel, tokens: Sequence[int], *, prompt_tokens: int) -> Rescore:
    """Compare each of `tokens` after the first `prompt_tokens` with the arg-max of a one-row pass."""
    state = model.new_state(min(len(tokens) + 1, model.card.context))
    gaps: list[float] = []
    hits = 0
    try:
        prefill(model, state, tokens[: prompt_tokens - 1])
        for index in range(prompt_tokens - 1, len(tokens) - 1):
            row = model.forward(tokens[index : index + 1], state).logits[0, : model.card.vocabulary_size]
            state.keep((0,))
            gap = float(row.max() - row[tokens[index + 1]])
            gap = math.inf if math.isnan(gap) else gap  # NaN logits count as a mismatch
            hits += gap == 0
            gaps += [gap] if gap else []
    finally:
        state.close()
    return Rescore(positions=len(tokens) - prompt_tokens, hits=hits, gaps=tuple(gaps))
