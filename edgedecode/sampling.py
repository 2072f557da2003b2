"""From one row of logits to the distribution a token is drawn from. Rows are processed only when they are reached.

The order is fixed: mask, penalties over context and path, temperature, top-k, top-p, min-p (that of transformers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from edgedecode.errors import CapabilityError, InputError
from edgedecode.hashing import exponentials, mixed
from edgedecode.manifest import Generation
from edgedecode.probs import Probs
from edgedecode.types import FloatArray

__all__ = ["Mask", "Noise", "Sampler", "SamplingOptions"]

Mask = Callable[[Sequence[int]], "npt.NDArray[np.bool_] | None"]
"""path of drafted tokens → which ids are allowed after it (bool [vocabulary]); None allows all."""

_NOISE_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to draw a token. temperature 0 is greedy: the arg-max of the masked, penalised row.

    top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off. Raises InputError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, value, good in (
            ("temperature", self.temperature, self.temperature == 0 or 1e-6 <= self.temperature <= 100),
            ("top_k", self.top_k, 0 <= self.top_k <= 2**31),
            ("top_p", self.top_p, 0 < self.top_p <= 1),
            ("min_p", self.min_p, 0 <= self.min_p <= 1),
            ("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty <= 100),
        ):
            if not good or not math.isfinite(value):
                raise InputError(f"{name} {value} is out of range: {_RANGES[name]}")

    @classmethod
    def from_generation(cls, generation: Generation) -> SamplingOptions:
        """Take the defaults of the pack's `generation_config`; what it does not say stays greedy and off."""
        said = {field.name: getattr(generation, field.name) for field in fields(cls)}
        return replace(cls(), **{name: value for name, value in said.items() if value is not None})

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


_RANGES = {
    "temperature": "0 (greedy), or 0.000001 to 100",
    "top_k": "0 (off) or more",
    "top_p": "above 0, up to 1 (off)",
    "min_p": "0 (off) to 1",
    "repetition_penalty": "above 0 (1 is off), up to 100",
}


class Noise:
    """The session's noise, per emitted position: a function of (seed, stream, position) alone, and per id for `draw`.

    A generation that was abandoned and taken up again therefore draws what an uninterrupted one would have drawn.
    Verification reads stream 0, drafters stream 1: what is drafted never changes what the target draws. A drafter may
    look at stream 0 with `draw_at`: what it draws from a distribution near the target's is then mostly the same token.
    """

    __slots__ = ("_block", "_block_start", "_hash_key", "_key", "position")

    def __init__(self, seed: int, *, stream: int = 0) -> None:
        if not 0 <= seed < 2**64:
            raise InputError(f"seed {seed} is out of range: 0 to 2**64 - 1")
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._hash_key = mixed(mixed(seed) + stream)
        self._block: npt.NDArray[np.float64] = np.empty(0)
        self._block_start = -1
        self.position = 0

    def random(self) -> float:
        """Return the uniform of the current position and advance."""
        start = self.position - self.position % _NOISE_BLOCK
        if start != self._block_start:
            generator = np.random.Generator(
                np.random.Philox(key=self._key, counter=np.array([0, 0, 0, start], dtype=np.uint64))
            )
            self._block, self._block_start = generator.random(_NOISE_BLOCK), start
        uniform = float(self._block[self.position - start])
        self.position += 1
        return uniform

    def draw(self, probs: Probs) -> int:
        """Draw a token with the current position's noise and advance."""
        token = self.draw_at(probs, self.position)
        self.position += 1
        return token

    def draw_at(self, probs: Probs, position: int) -> int:
        """Return the token that this position's noise draws from `probs`; nothing is consumed."""
        if len(probs.ids) == 1:
            return int(probs.ids[0])
        key = mixed(self._hash_key + position)
        return probs.race(lambda ids: exponentials(key, ids))

    def ranked_at(self, probs: Probs, position: int, *, count: int) -> list[int]:
        """Return what this position's noise would draw first, then without that, and so on; at most `count` tokens."""
        if len(probs.ids) == 1:
            return [int(probs.ids[0])]
        key = mixed(self._hash_key + position)
        return probs.arrivals(lambda ids: exponentials(key, ids), count=count)


class Sampler:
    """Turns logits into `Probs` for one sequence; knows which ids the sequence already holds."""

    __slots__ = ("_count", "_known", "_length", "_mask", "_seen", "options", "vocabulary_size")

    def __init__(self, options: SamplingOptions, *, vocabulary_size: int, mask: Mask | None = None) -> None:
        self.options = options
        self.vocabulary_size = vocabulary_size
        self._mask = mask
        self._known: set[int] = set()
        self._seen = np.empty(vocabulary_size if options.repetition_penalty != 1 else 0, dtype=np.int64)
        self._count = 0
        self._length = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Take `tokens` as the sequence so far, forgetting any other."""
        self._known.clear()
        self._count = self._length = 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens to the sequence."""
        self._length += len(tokens)
        if self.options.repetition_penalty == 1:
            return
        for token in tokens:
            if token not in self._known and token < self.vocabulary_size:
                self._known.add(token)
                self._seen[self._count] = token
                self._count += 1

    def probs(self, row: FloatArray, path: Sequence[int] = ()) -> Probs:
        """Process one row of logits, [rows]; `path` are the drafted tokens between the sequence and this row.

        Ids at and above the tokenizer's size are padding and get nothing. Raises InputError when the mask allows none.
        """
        options = self.options
        logits = row[: self.vocabulary_size]
        allowed = self._mask(path) if self._mask is not None else None
        if allowed is not None:
            if not allowed.any():
                raise InputError("the grammar allows no token here")
            logits = np.where(allowed, logits, -np.inf)
        if options.repetition_penalty != 1:
            logits = self._penalised(logits, path)
        best = int(logits.argmax())
        if logits[best] != logits[best]:  # numpy's arg-max is the first NaN where there is one
            raise CapabilityError(
                "the model's logits are not numbers: its weights are damaged (check with --verify), or the engine's "
                "kernels fail on this machine"
            )
        if options.greedy:
            return Probs.point(best)
        return _truncated(logits, options)

    def _penalised(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        """Divide positive and multiply negative logits of every id seen (CTRL, 1909.05858), each id once."""
        drafted = [token for token in path if token < self.vocabulary_size]
        seen = np.concatenate((self._seen[: self._count], np.array(drafted, dtype=np.int64)))
        result = logits.copy()
        values = result[seen]
        penalty = np.float32(self.options.repetition_penalty)
        result[seen] = np.where(values > 0, values / penalty, values * penalty)
        return result


def _truncated(logits: FloatArray, options: SamplingOptions) -> Probs:
    """Apply temperature, top-k, top-p and min-p; the whole vocabulary is sorted only where the nucleus is that wide."""
    ids: npt.NDArray[np.int64] | None = None
    if 0 < options.top_k < len(logits):
        least = np.partition(logits, -options.top_k)[-options.top_k]
        ids = np.flatnonzero(logits >= least)  # with those that tie with the last one, as transformers does
        logits = logits[ids]
    weights = logits - logits.max()
    weights /= np.float32(options.temperature)
    np.exp(weights, out=weights)
    # The largest weight is 1 and top-p keeps it, so min-p is a floor on the weights whatever top-p removes.
    floor = options.min_p
    if options.top_p < 1:
        floor = max(floor, _nucleus_floor(weights, options.top_p))
    if floor > 0 or not weights.all():
        kept = np.flatnonzero(weights >= floor) if floor > 0 else np.flatnonzero(weights)
        weights = weights[kept]
        ids = kept if ids is None else ids[kept]
    p = weights.astype(np.float64)
    p /= p.sum()
    return Probs(np.arange(len(p)) if ids is None else ids, p)


def _nucleus_floor(weights: FloatArray, top_p: float) -> float:
    """Return the smallest weight inside the nucleus: the fewest likeliest ids whose share reaches `top_p`.

    Ids that tie with the last one are kept too. Looks at the largest few, then at eight times as many, and so on.
    """
    wanted = top_p * float(weights.sum(dtype=np.float64))
    size = min(64, len(weights))
    while True:
        head = np.sort(weights if size == len(weights) else np.partition(weights, -size)[-size:])[::-1]
        mass = np.cumsum(head, dtype=np.float64)
        if mass[-1] >= wanted or size == len(weights):
            return float(head[min(int(np.searchsorted(mass, wanted)), size - 1)])
        size = min(8 * size, len(weights))
