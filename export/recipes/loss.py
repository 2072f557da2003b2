"""Measures what a pack loses: how far its distributions are from those of the original weights, on one text."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.text_scores import ScoredText, logit_rows

from ..checks.reference import Reference
from .calibration import hidden_states


def measure_loss(
    model: LanguageModel,
    reference: Reference,
    texts: Sequence[ScoredText],
    *,
    progress: Callable[[int], None] = lambda amount: None,
) -> Mapping[str, float]:
    """Compare a model with the original weights at every scored token.

    Returns the mean KL(original ‖ model) in nats, the share of positions with the same arg-max, and their number. The
    model runs as it is shipped: activations and kernels count as well as weights.
    """
    original = reference.of_originals()
    hidden = np.concatenate([*hidden_states(original, [text.tokens for text in texts])])
    kl, same, positions, before = 0.0, 0, 0, 0
    for text in texts:
        at = before + text.start - 1
        for rows in logit_rows(model, text):
            parts = [part for _, part in original.head(hidden[at : at + len(rows)])]
            expected = np.concatenate(parts, axis=1)[:, : rows.shape[1]]
            kl += float(divergences(expected, rows).sum())
            same += int((expected.argmax(axis=1) == rows.argmax(axis=1)).sum())
            at += len(rows)
            progress(len(rows))
        positions += text.scored
        before += len(text.tokens)
    return {"loss_kl": kl / positions, "loss_top1": same / positions, "loss_positions": float(positions)}


def divergences(expected: FloatArray, found: FloatArray) -> npt.NDArray[np.float64]:
    """Return KL(expected ‖ found) of each row of logits, in nats."""
    weights, total = _exponentials(expected)
    gaps = (weights * (expected - found)).sum(axis=1, dtype=np.float64) / weights.sum(axis=1, dtype=np.float64)
    return np.asarray(gaps - total + _exponentials(found)[1])


def _exponentials(rows: FloatArray) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """Return each row's exponentials, scaled to a maximum of 1, and the logarithm of their unscaled sum."""
    highest = rows.max(axis=1)
    exps = np.exp(rows - highest[:, None])
    return exps, highest + np.log(exps.sum(axis=1, dtype=np.float64))
