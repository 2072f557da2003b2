"""Sampling from one row of logits, and the noise for it. Rows are processed only when verification reaches them.

Options apply in the order of `SamplingOptions`, as in transformers: penalties over context and path, temperature,
top-k, top-p, min-p, typical p, XTC, Mirostat.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import InputError

from .counter_rng import first_arrivals, first_uniform, mixed
from .masses import largest
from .penalties import Counter, LastTokens, Marked
from .probs import Probs
from .row_draw import NumpyRowDraw, RowDraw, weighted
from .weights import SamplingOptions

if TYPE_CHECKING:  # few answers are asked for any of them
    from .dry import Repetitions
    from .log_probabilities import TokenLogprob
    from .mirostat import SurpriseLimit

_NOISE_BLOCK = 256
"""Uniforms that are generated at once."""
_SEED_BITS = 53


class Noise:
    """An answer's noise per position, and per id for `draw`: a function of (seed, stream, position) only.

    So a generation that was interrupted and resumed samples the same tokens as an uninterrupted one.
    Verification uses stream 0 and drafters stream 1, so that drafts never change the target's samples. A drafter may
    read stream 0 with `draw_at`: from a distribution close to the target's it then mostly samples the same token.
    """

    __slots__ = ("_block", "_block_start", "_hash_key", "_key", "_stream", "position")

    def __init__(self, seed: int, *, stream: int = 0) -> None:
        self._stream = stream
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Restart with this seed."""
        if not 0 <= seed < 2**64:
            raise InputError(f"seed {seed} is out of range: 0 to 2**64 - 1")
        self._key = np.array([seed, self._stream], dtype=np.uint64)
        self._hash_key = mixed(mixed(seed) + self._stream)
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

    def take(self) -> int:
        """Return the key of the current position's noise per id, and advance."""
        self.position += 1
        return self.key_at(self.position - 1)

    def key_at(self, position: int) -> int:
        """Return the key of this position's noise per id, without advancing."""
        return mixed(self._hash_key + position)

    def draw_at(self, probs: Probs, position: int) -> int:
        """Return the token that this position's noise samples from `probs`, without advancing."""
        return self.ranked_at(probs, position, count=1)[0]

    def ranked_at(self, probs: Probs, position: int, *, count: int) -> list[int]:
        """Return the first `count` tokens that this position's noise samples from `probs` without replacement."""
        ranked: list[int] = probs.ids[first_arrivals(self.key_at(position), probs.ids, probs.p, count=count)].tolist()
        return ranked


def answer_seed(seed: int | None, number: int) -> int:
    """Return the seed of answer `number` of a session: the session's for the first, derived seeds after it.

    seed: the session's; None: a random seed for each answer. Random and derived seeds have 53 bits, so that JSON
    readers which store numbers as float64 keep them exact.
    """
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    return seed if number == 0 else mixed(mixed(seed) + number) >> 64 - _SEED_BITS


_NOTHING = Marked.of()


class Sampler:
    """Turns logits into tokens, or into `Probs`, for one sequence; counts the tokens as penalties need.

    row_draw: the helper that samples a token from a row; None: numpy.
    """

    __slots__ = ("_counter", "_dry", "_limit", "_penalises", "_row_draw", "_unpenalised", "options", "vocabulary_size")

    def __init__(self, options: SamplingOptions, *, vocabulary_size: int, row_draw: RowDraw | None = None) -> None:
        self.options = options
        self._row_draw = row_draw or NumpyRowDraw()
        self.vocabulary_size = vocabulary_size
        window = options.penalty_window
        self._counter = LastTokens(vocabulary_size, window) if window else Counter(vocabulary_size)
        self._penalises = options.penalises
        self._dry: Repetitions | None = None
        if options.dry_multiplier:
            from .dry import RepetitionPenalty, Repetitions

            multiplier, base, allowed = options.dry_multiplier, options.dry_base, options.dry_allowed_length
            last, breakers = options.dry_penalty_last_n, options.dry_sequence_breakers
            penalty = RepetitionPenalty(multiplier, base, allowed, last, breakers)
            self._dry = Repetitions(vocabulary_size, penalty)
        self._unpenalised = options.unpenalised()
        self._limit: SurpriseLimit | None = None
        if options.mirostat and not options.greedy:
            from .mirostat import SurpriseLimit  # late: most answers are without it

            self._limit = SurpriseLimit(options.mirostat_tau, options.mirostat_eta)

    def begin(self, tokens: Sequence[int], *, generated: int = 0) -> None:
        """Start a sequence with `tokens`, the last `generated` of them an answer's, forgetting the previous one."""
        self._counter.clear()
        if self._penalises:
            start = len(tokens) - generated
            self._counter.add(tokens[:start], generated=False)
            self._counter.add(tokens[start:], generated=True)
        if self._dry is not None:
            self._dry.begin(tokens)
        if self._limit is not None:
            self._limit.begin()

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens to the sequence."""
        if self._penalises:
            self._counter.add(tokens, generated=True)
        if self._dry is not None:
            self._dry.add(tokens)
        if self._limit is not None:
            self._limit.extend(tokens)

    @property
    def takes_largest(self) -> bool:
        """Whether it takes the arg-max of every unmodified row."""
        return self.options.greedy and not self.options.changes_logits

    def draw(self, row: FloatArray, path: Sequence[int] = (), *, key: int, ids: IntArray | None = None) -> int:
        """Sample a token with the noise of `key`: `Noise.draw_at` on `probs` with this key, without computing `probs`.

        ids: int64, ascending, the id of each of the row's elements; None: its index.
        Raises the errors of `probs`.
        """
        if self._limit is not None:
            probs = self.probs(row, path, key=key, ids=ids)
            return int(probs.ids[first_arrivals(key, probs.ids, probs.p)[0]])
        logits = row[: self.vocabulary_size if ids is None else len(ids)]
        if self._dry is not None:
            changed = self._penalised(logits, path, ids=ids)
            return self._row_draw.draw(changed, self._unpenalised, key=key, seen=_NOTHING, ids=ids)
        return self._row_draw.draw(logits, self.options, key=key, seen=self._seen_with(path).among(ids), ids=ids)

    def top(self, row: FloatArray, k: int) -> IntArray:
        """Return the ids of the k largest raw logits of a row (all if fewer), likeliest first; padding is excluded."""
        return self._row_draw.top(row[: self.vocabulary_size], min(k, self.vocabulary_size, len(row)))

    def logprob(self, row: FloatArray, token: int, *, top: int) -> TokenLogprob:
        """Return a token's log probability in the softmax of a raw row, with the `top` likeliest; padding excluded."""
        from .log_probabilities import token_logprob

        leading = self.top(row, top) if top else np.empty(0, np.int64)
        return token_logprob(row[: self.vocabulary_size], token, leading)

    def probs(
        self, row: FloatArray, path: Sequence[int] = (), *, key: int | None = None, ids: IntArray | None = None
    ) -> Probs:
        """Process one row of logits, [rows]; `path` are the drafted tokens between the sequence and this row.

        key: of the position's noise, which decides what is left to chance (XTC); None: the mean over both outcomes.
        ids: as in `draw`, and then those of the result.
        Ids from the tokenizer's size on are padding with probability 0. Raises CapabilityError for logits that are not
        numbers.
        """
        logits = self._penalised(row[: self.vocabulary_size if ids is None else len(ids)], path, ids=ids)
        if self.options.greedy:
            best = largest(logits)
            return Probs.point(best if ids is None else int(ids[best]))
        bits = None if self._limit is None else self._limit.after(path)
        chance = self.options.xtc_probability
        if key is not None or not chance:
            found = self._kept(logits, coin=1.0 if key is None else first_uniform(key), bits=bits)
        else:
            kept, rest = (self._kept(logits, coin=coin, bits=bits) for coin in (1.0, 0.0))
            mean = np.zeros(len(logits))
            mean[kept.ids] = (1 - chance) * kept.p
            mean[rest.ids] += chance * rest.p
            found = Probs.dense(mean)
        if ids is not None:
            found = Probs(ids[found.ids], found.p)
        if self._limit is not None:
            self._limit.show(path, found)
        return found

    def _kept(self, logits: FloatArray, *, coin: float, bits: float | None) -> Probs:
        ids, weights = weighted(logits, self.options, coin=coin, bits=bits)
        p = weights.astype(np.float64)
        p /= p.sum()
        return Probs(np.arange(len(p)) if ids is None else ids, p)

    def _penalised(self, logits: FloatArray, path: Sequence[int], *, ids: IntArray | None = None) -> FloatArray:
        """Return the row after biases and all penalties; the same array if there are none."""
        logits = self.options.penalised(logits, self._seen_with(path).among(ids), ids=ids)  # a copy, if DRY is on
        if self._dry is not None:
            marked = self._dry.after(path).among(ids)
            logits[marked.ids] -= marked.numbers
        return logits

    def _seen_with(self, path: Sequence[int]) -> Marked:
        """Return the ids seen in the sequence and after it in `path`, and how often each was generated."""
        return self._counter.after(path) if self._penalises else _NOTHING
