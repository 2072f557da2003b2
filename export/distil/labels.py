"""What a head is to learn, by position: the target's features, and its distribution of the next token.

Both are computed by the weights that will run, so that the head learns what it will see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from edgedecode.decoding.model import FeatureState, LanguageModel
from edgedecode.errors import InputError

from .texts import Text

TOP = 64
"""The likeliest tokens that are kept: the others have 4% of the probability in SmolLM2-135M's texts."""
_PASS = 128


def label_type(width: int) -> np.dtype:
    """Return the type of a position. features: bfloat16's upper halves. logs: log probabilities."""
    return np.dtype([("features", "<u2", (width,)), ("ids", "<i4", (TOP,)), ("logs", "<f2", (TOP,))])


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of texts, mapped from a file: those of text i begin at `starts[i]`."""

    texts: Sequence[Text]
    starts: Sequence[int]
    rows: np.ndarray

    @classmethod
    def open(cls, path: Path, texts: Sequence[Text], *, width: int) -> Labels:
        starts = [0, *accumulate(len(text.tokens) for text in texts)]
        rows = np.memmap(path, label_type(width), mode="r", shape=(starts[-1],))
        return cls(texts, starts, rows)

    def of(self, index: int) -> np.ndarray:
        """Return the labels of a text."""
        return self.rows[self.starts[index] : self.starts[index + 1]]


def write_labels(model: LanguageModel, texts: Sequence[Text], path: Path, *, done: Callable[[Text], None]) -> None:
    """Add the labels of texts to a file. model: opened with the taps. Raises InputError for too long a text."""
    longest = max((len(text.tokens) for text in texts), default=0)
    if longest > model.card.context:
        raise InputError(f"a text has {longest} tokens, the target's context {model.card.context}: leave it out")
    with closing(model.new_state(max(longest, 2), rows=_PASS)) as state, path.open("ab") as file:
        assert isinstance(state, FeatureState)
        features = state.keep_features()
        for text in texts:
            state.crop(0)
            for start in range(0, len(text.tokens), _PASS):
                piece = text.tokens[start : start + _PASS]
                logits = torch.from_numpy(model.forward(piece, state, rows="all").logits)
                top = logits.topk(TOP)
                logs = top.values - logits.logsumexp(-1, keepdim=True)
                state.keep(range(len(piece)))
                values = features.rows(start, start + len(piece))
                rows = np.empty(len(piece), label_type(values.shape[1]))
                rows["features"] = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
                rows["ids"], rows["logs"] = top.indices.numpy(), logs.numpy()
                file.write(rows.tobytes())
            done(text)
