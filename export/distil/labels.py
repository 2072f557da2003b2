"""What is to be learnt, by position: the target's distribution of the next token, and for a head its features.

Both are computed by the weights that will run, so that a head learns what it will see.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, pairwise
from os import SEEK_END
from pathlib import Path

import numpy as np
import torch

from edgedecode.adapters.pack_adapters import ActiveAdapter
from edgedecode.decoding.heads import FeatureState
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import InputError
from edgedecode.sessions.target_reading import adapter_span

from .texts import Text

TOP = 64
"""The likeliest tokens that are kept: the others have 4% of the probability in SmolLM2-135M's texts."""
_PASS = 128


def label_type(width: int) -> np.dtype:
    """Return the type of a position. features: bfloat16's upper halves. logs: log probabilities."""
    return np.dtype([("features", "<u2", (width,)), ("ids", "<i4", (TOP,)), ("logs", "<f2", (TOP,))])


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of texts in a file: those of text i begin at `starts[i]`. Mapped, they would all stay in memory."""

    path: Path
    texts: Sequence[Text]
    starts: Sequence[int]
    width: int

    @classmethod
    def open(cls, path: Path, texts: Sequence[Text], *, width: int) -> "Labels":
        return cls(path, texts, [0, *accumulate(len(text.tokens) for text in texts)], width)

    def of(self, index: int) -> np.ndarray:
        """Return the labels of a text."""
        row, start = label_type(self.width), self.starts[index]
        return np.fromfile(self.path, row, self.starts[index + 1] - start, offset=start * row.itemsize)


def labelled(path: Path, texts: Sequence[Text], *, width: int, is_trained: bool) -> tuple[int, int]:
    """Return how many texts have their labels in a file, and how many are to have them.

    The rest of the file is cut off: all of it if it is of other texts. Beside it lie the digest of its texts, which are
    all known before the first is read, and how many are used. is_trained: whether a training has read the labels;
    raises InputError if they are of other texts.
    """
    row, beside = label_type(width), path.with_suffix(".sha256")
    digest = sha256(f"{row.descr}".encode() + b"".join(text.line for text in texts)).hexdigest()
    known, _, used = (beside.read_text() if beside.exists() else "").partition(" ")
    if is_trained and known != digest:
        raise InputError(
            f"the texts in {path.parent} are not those of its training: put them back, or use another --out"
        )
    wanted = int(used) if is_trained and used.isdigit() else len(texts)
    with path.open("ab") as file:
        have = file.seek(0, SEEK_END) // row.itemsize if known == digest else 0
        done = rows = 0
        while done < wanted and rows + len(texts[done].tokens) <= have:
            rows, done = rows + len(texts[done].tokens), done + 1
        file.truncate(rows * row.itemsize)
    beside.write_text(f"{digest} {wanted}")
    return done, wanted


def use_only(path: Path, count: int) -> None:
    """Note that the file has the labels of the first texts alone, which are those that are trained on."""
    beside = path.with_suffix(".sha256")
    beside.write_text(f"{beside.read_text().split()[0]} {count}")


def write_labels(
    model: LanguageModel,
    texts: Sequence[Text],
    path: Path,
    *,
    width: int,
    adapter: ActiveAdapter | None,
    advance: Callable[[int], bool],
) -> int:
    """Add the labels of texts to a file, with features of this width, or none. Return how many were read.

    model: opened with the taps, and with the adapter if there is one. advance: is told of each text's tokens, and says
    whether to go on. Raises InputError for too long a text.
    """
    longest = max((len(text.tokens) for text in texts), default=0)
    if longest > model.card.context:
        raise InputError(f"a text has {longest} tokens, the target's context {model.card.context}: leave it out")
    with _alone(), closing(model.new_state(max(longest, 2), rows=_PASS)) as state, path.open("ab") as file:
        features = None
        if width:
            assert isinstance(state, FeatureState)
            features = state.keep_features()
        for count, text in enumerate(texts, start=1):
            state.crop(0)
            span = adapter_span(adapter, text.prompt)
            starts = sorted({*range(0, len(text.tokens), _PASS), span.start, len(text.tokens)})
            for start, end in pairwise(starts):
                piece = text.tokens[start:end]
                logits = torch.from_numpy(model.forward(piece, state, rows="all", adapter=span.at(start)).logits)
                top = logits.topk(TOP)
                logs = top.values - logits.logsumexp(-1, keepdim=True)
                state.keep(range(len(piece)))
                rows = np.empty(len(piece), label_type(width))
                if features is not None:
                    values = torch.from_numpy(features.rows(start, start + len(piece)))
                    rows["features"] = values.bfloat16().view(torch.uint16).numpy()
                rows["ids"], rows["logs"] = top.indices.numpy(), logs.numpy()
                file.write(rows.tobytes())
            if not advance(len(text.tokens)):
                return count
    return len(texts)


@contextmanager
def _alone() -> Iterator[None]:
    """Let torch use one thread: two that wait for each other between the engine's passes took 28 ms for a logsumexp of
    0.8 (1.4 times as fast in all with SmolLM2-135M, 3.4 times with the bundled target)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
