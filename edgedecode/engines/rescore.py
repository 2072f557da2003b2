"""Re-scores emitted text with the one-row kernel: what plain decoding would have said at every position.

Speculation scores several rows a pass, and many-row kernels round differently. A token is plain decoding's own when it
is the arg-max here, or when the gap to it lies below the pack's kernel noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel

__all__ = ["Rescore", "rescore"]


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
