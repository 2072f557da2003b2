"""Log probabilities of tokens, from a raw row of logits. Depends only on numpy."""

import math
from dataclasses import dataclass

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import InputError

MOST_TOP_LOGPROBS = 20
"""Most alternatives per token, as in OpenAI's API."""
_PIECE = 16384
"""Elements per step: pieces of this size stay in the CPU cache, and no array of a row's size is allocated."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability in the softmax of the target's raw logits, in nats.

    Raw: before temperature, penalties, truncation and grammar. So the token need not be among `top`, even at
    temperature 0, and the log probability is -inf where the model's logit is.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at its position with their log probabilities, likeliest first."""


def token_logprob(row: FloatArray, token: int, leading: IntArray) -> TokenLogprob:
    """Return the log probability of a token after a row of logits. leading: the ids to report as `top`, any order."""
    normalizer = _log_sum_exp(row)
    top = sorted(((int(id), float(row[id]) - normalizer) for id in leading), key=lambda each: (-each[1], each[0]))
    return TokenLogprob(token, float(row[token]) - normalizer, tuple(top))


def check_top_logprobs(count: int) -> None:
    """Raise InputError if the number of alternatives per token is out of range."""
    if not 0 <= count <= MOST_TOP_LOGPROBS:
        raise InputError(f"top_logprobs {count} is out of range: 0 to {MOST_TOP_LOGPROBS}")


def _log_sum_exp(row: FloatArray) -> float:
    """Return ln Σ exp(logit); the exponentials are float32, each to 1e-7 of it, and their sum is float64."""
    highest = row.max()
    total = 0.0
    spare = np.empty(min(_PIECE, len(row)), np.float32)
    for start in range(0, len(row), _PIECE):
        piece = row[start : start + _PIECE]
        exps = np.subtract(piece, highest, out=spare[: len(piece)])
        total += float(np.exp(exps, out=exps).sum(dtype=np.float64))
    return float(highest) + math.log(total)
