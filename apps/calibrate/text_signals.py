"""What the draft model's signals are on the target's answers: which signal foretells a different token, and thresholds.

The draft model processes prompt and answer in one go (teacher forcing), which costs a fraction of an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel
from edgedecode.sampling.row_draw import RowDraw
from edgedecode.switching.rule import SIGNALS

_ROWS = 32
"""Rows of logits per pass."""
RECALL = 0.99
"""Share of the tokens on which the models differ that a signal is compared at."""

_Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AnswerSignals:
    """For each token of the target's answers: the draft model's signals by name, and whether its choice differs."""

    values: dict[str, _Values]
    differs: npt.NDArray[np.bool_]


def answer_signals(
    draft: LanguageModel, prompt: Sequence[int], answer: Sequence[int], *, vocabulary_size: int, row_draw: RowDraw
) -> AnswerSignals:
    """Return the signals before each token of an answer. The draft's head must cover the full vocabulary."""
    sequence = [*prompt, *answer]
    values: dict[str, list[float]] = {name: [] for name in SIGNALS}
    differs: list[bool] = []
    state = draft.new_state(len(sequence), rows=_ROWS)
    try:
        prefill(draft, state, prompt[:-1])
        for start in range(len(prompt) - 1, len(sequence) - 1, _ROWS):
            chunk = sequence[start : min(start + _ROWS, len(sequence) - 1)]
            rows = draft.forward(chunk, state, rows="all").logits[:, :vocabulary_size]
            for row, token in zip(rows, sequence[start + 1 :], strict=False):
                differs.append(row_draw.argmax(row) != token)
                for name, signal in SIGNALS.items():
                    values[name].append(signal(row, row_draw))
            state.keep(range(len(chunk)))
    finally:
        state.close()
    return AnswerSignals({name: np.array(each) for name, each in values.items()}, np.array(differs, bool))


def joined(parts: Sequence[AnswerSignals]) -> AnswerSignals:
    """Return the tokens of all answers together."""
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in SIGNALS}
    return AnswerSignals(values, np.concatenate([part.differs for part in parts]))


def best_signal(found: AnswerSignals) -> str:
    """Return the signal that hands over the fewest tokens at a threshold that catches `RECALL` of the differences."""
    if not found.differs.any():
        return next(iter(SIGNALS))

    def share(name: str) -> float:
        values = found.values[name]
        return float((values >= np.quantile(values[found.differs], 1 - RECALL)).mean())

    return min(SIGNALS, key=share)


def thresholds(values: _Values, count: int) -> list[float]:
    """Return `count` thresholds, ascending: quantiles that hand over from 60% to 6% of the tokens."""
    shares = np.geomspace(0.6, 0.06, count)
    return sorted({float(threshold) for threshold in np.quantile(values, 1 - shares)})
