"""Computes tokens per round for each draft length and vocabulary, from one forward pass of the draft over a text.

As long as proposals are accepted, the draft's context is the target's text. So a greedy proposal is accepted exactly if
the arg-max of the draft's logits, after the text so far, is the next token. A smaller vocabulary only has fewer
candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.text_scores import logit_rows

from .texts import AnsweredText

BoolArray = npt.NDArray[np.bool_]

LENGTHS = tuple(range(1, 9))
"""The draft lengths considered."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of one vocabulary on some texts."""

    tokens: int
    coverage: float
    """Share of the tokens that the vocabulary contains; 0 if there are no tokens."""
    per_round: dict[int, float]
    """Draft length → tokens per round, including the target's own."""


def measure_acceptance(
    model: LanguageModel,
    texts: Sequence[AnsweredText],
    vocabularies: Sequence[IntArray],
    *,
    advance: Callable[[int], None] = lambda amount: None,
) -> list[Acceptance]:
    """Run the full draft over texts; return the acceptance of each vocabulary, given as ascending ids."""
    answers = np.asarray([token for text in texts for token in text.answer], np.int64)
    hits = []
    for text in texts:
        hits.append(forced_hits(model, text, vocabularies))
        advance(1)
    found = []
    for column, ids in enumerate(vocabularies):
        coverage = float(np.isin(answers, ids).mean()) if len(answers) else 0.0
        own = [(each[:, column], text.ended) for each, text in zip(hits, texts, strict=True)]
        found.append(Acceptance(len(answers), coverage, {length: _tokens_per_round(own, length) for length in LENGTHS}))
    return found


def forced_hits(model: LanguageModel, text: AnsweredText, vocabularies: Sequence[IntArray]) -> BoolArray:
    """Return which of an answer's tokens the draft would propose, [tokens, vocabularies]. Raises what it does."""
    guesses = np.concatenate([likeliest(rows, vocabularies) for rows in logit_rows(model, text)])
    return np.asarray(guesses == np.asarray(text.answer)[:, None])


def likeliest(logits: FloatArray, vocabularies: Sequence[IntArray]) -> IntArray:
    """Return the arg-max id within each vocabulary, [rows, vocabularies]; ties give the lowest id."""
    return np.stack([ids[logits[:, ids].argmax(axis=1)] for ids in vocabularies], axis=1)


def accepted_by_round(hits: BoolArray, *, length: int, ended: bool) -> Iterator[int]:
    """Yield the number of proposals that each round accepts when decoding a text with drafts of `length` tokens.

    hits: for each token, whether the draft would propose it. The first token comes from prefill, which verifies no
    draft. If the text did not end by itself it was cut at a limit, where the last token is the target's own.
    """
    at = 1
    while at < len(hits):
        proposed = hits[at : at + min(length, len(hits) - at - (0 if ended else 1))]
        accepted = len(proposed) if proposed.all() else int(proposed.argmin())
        yield accepted
        at += accepted + 1


def _tokens_per_round(texts: Sequence[tuple[BoolArray, bool]], length: int) -> float:
    """Return tokens per round; 1, as in plain decoding, if there is none. texts: their hits, and whether they ended."""
    rounds = sum(len([*accepted_by_round(hits, length=length, ended=ended)]) for hits, ended in texts)
    return sum(len(hits) - 1 for hits, _ in texts) / rounds if rounds else 1.0
