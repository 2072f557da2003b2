"""Runs one engine with several KV cache types on the same texts, and sums up the quality of each type.

Only one model is open at a time, to save memory. Of the reference's rows only the likeliest ids are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.engine_factory import RuntimeFactory
from edgedecode.engines.registry import RUNTIMES, find_factory, installed
from edgedecode.engines.selection import engine_version
from edgedecode.engines.text_scores import PIECE, Likely, ScoredText, Scores, score_rows
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.open_pack import KV_TYPES
from edgedecode.pack.engine_equality import CONFIDENCE, Rate
from edgedecode.pack.manifest import Manifest

from ..terminal import tracked
from .equality import EncodedPrompt, check_room, decode_all

RESAMPLES = 2000
"""Bootstrap resamples. More make the bounds steadier, and take longer."""


@dataclass(frozen=True, slots=True)
class TextScores:
    """One text's scores and greedy answer."""

    scores: Scores
    divergence: float
    """Nats by which its rows diverge from the reference's, summed over the scored tokens."""
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class KvQuality:
    """One KV type on one engine, compared with the reference type on the same texts."""

    kv_type: str
    kv_nbytes: int
    """Bytes of one position's keys and values."""
    positions: int
    """Tokens that were scored."""
    perplexity: float
    ratio: float
    """The perplexity divided by the reference's."""
    ratio_low: float | None
    ratio_high: float | None
    """Bounds of 95% of the resampled sets of texts; None if there is only one text."""
    leading: int
    """Positions with the reference's top token."""
    divergence: float
    """Mean nats from the reference's rows per position, over the likeliest ids and one class for all others."""
    texts: int
    identical: int
    """Greedy answers equal to the reference's, token for token."""

    @property
    def leading_rate(self) -> Rate:
        return Rate(self.leading, self.positions)

    @property
    def identical_rate(self) -> Rate:
        return Rate(self.identical, self.texts)


def quality_of(
    found: Sequence[TextScores], reference: Sequence[TextScores], *, kv_type: str, kv_nbytes: int
) -> KvQuality:
    """Sum up the scores of all texts. Both sequences hold the texts in the same order."""
    lengths = np.array([len(text.scores.losses) for text in found])
    losses = _losses(found)
    excess = losses - _losses(reference)
    bounds = ratio_bounds(excess, lengths)
    pairs = list(zip(found, reference, strict=True))
    return KvQuality(
        kv_type=kv_type,
        kv_nbytes=kv_nbytes,
        positions=int(lengths.sum()),
        perplexity=float(np.exp(losses.sum() / lengths.sum())),
        ratio=float(np.exp(excess.sum() / lengths.sum())),
        ratio_low=None if bounds is None else bounds[0],
        ratio_high=None if bounds is None else bounds[1],
        leading=sum(int((own.scores.leading == other.scores.leading).sum()) for own, other in pairs),
        divergence=float(sum(text.divergence for text in found) / lengths.sum()),
        texts=len(found),
        identical=sum(list(own.answer) == list(other.answer) for own, other in pairs),
    )


def ratio_bounds(
    excess: Sequence[float] | np.ndarray, lengths: Sequence[int] | np.ndarray
) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of a perplexity ratio; None for fewer than two texts.

    excess: by text, the sum of its tokens' differences in loss. Full texts are resampled, since the tokens of one text
    are not independent. The resampling has a fixed seed.
    """
    sums, counts = np.asarray(excess, np.float64), np.asarray(lengths, np.float64)
    if len(sums) < 2:
        return None
    resampled = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    ratios = np.exp(sums[resampled].sum(axis=1) / counts[resampled].sum(axis=1))
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _losses(texts: Sequence[TextScores]) -> np.ndarray:
    return np.array([text.scores.losses.sum(dtype=np.float64) for text in texts])


SCORE_NBYTES = len(KV_TYPES) * (4 + 8)
"""Bytes of a position's loss and top id, over all types."""
WORKING = 3
"""Arrays of a pass's rows in memory at once: the probabilities, and the intermediate results behind them."""

TypeOpener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model with keys and values of this type."""


def installed_runtimes() -> list[str]:
    """Return the runtimes whose engine is installed and reports its version."""
    return [name for name in installed(RUNTIMES) if engine_version(name) is not None]


def refused_types(runtime: str, manifest: Manifest, root: Path, *, role: str) -> dict[str, str]:
    """Return the KV types that an engine cannot run a model with, and why, without loading it.

    Raises RuntimeUnavailable, InputError if the engine is unknown.
    """
    factory = find_factory(runtime)
    if not isinstance(factory, RuntimeFactory):
        raise CapabilityError(f"the runtime {runtime} does not report its KV cache types")
    if factory.engine_version() is None:
        raise RuntimeUnavailable(f"{runtime} is not installed: pip install 'edgedecode[{runtime}]'")
    refused: dict[str, str] = {}
    for kv_type in KV_TYPES:
        needs = (f"kv:{kv_type}",)
        refusal = factory.refusal(manifest.located(role), root, name=role, provider="cpu", needs=needs)
        if refusal is not None:
            refused[kv_type] = refusal.reason
    return refused


def types_to_compare(asked: str | None, refused: Mapping[str, str]) -> tuple[str, ...]:
    """Return the most precise type as the reference, and `asked` or all others to compare with it; empty: none."""
    reference, *others = [kv_type for kv_type in KV_TYPES if kv_type not in refused]
    if asked is not None:
        others = [asked] if asked not in refused else []
    return (reference, *others) if others else ()


def compare_types(
    open_model: TypeOpener,
    kv_types: Sequence[str],
    prompts: Sequence[EncodedPrompt],
    *,
    max_tokens: int,
    ends: frozenset[int],
    what: str,
) -> tuple[KvQuality, ...]:
    """Score the prompts and the first type's greedy answers to them with every type. Raises what `check_room` raises.

    Each result compares a type with the first type; the first result is that of the first type itself. what: for the
    progress.
    """
    texts: list[ScoredText] = []
    likely: list[list[Likely]] = []
    found: list[list[TextScores]] = []
    nbytes: list[int] = []
    for kv_type in kv_types:
        with open_model(kv_type) as model:
            if model.card.kv_type != kv_type:
                raise CapabilityError(f"{model.card.name} was opened with KV type {model.card.kv_type}, not {kv_type}")
            check_room(model, prompts, max_tokens=max_tokens)
            decodes = f"{what}: {kv_type} decodes"
            answers = decode_all(model, prompts, max_tokens=max_tokens, ends=ends, what=decodes)
            if not found:
                texts = [ScoredText((*own.tokens, *answer), 1) for own, answer in zip(prompts, answers, strict=True)]
                likely = [[] for _ in texts]
            scored = tracked(zip(texts, answers, likely, strict=True), f"{what}: {kv_type} scores")
            found.append([_scored(model, text, answer, rows) for text, answer, rows in scored])
            nbytes.append(model.card.kv_nbytes)
    return tuple(
        quality_of(scored, found[0], kv_type=kv_type, kv_nbytes=size)
        for kv_type, scored, size in zip(kv_types, found, nbytes, strict=True)
    )


def _scored(model: LanguageModel, text: ScoredText, answer: Sequence[int], likely: list[Likely]) -> TextScores:
    """Score a text against the reference's rows. An empty `likely` marks the reference itself, and is filled."""
    first = not likely
    parts: list[Scores] = []
    divergence = 0.0
    for place, rows in enumerate(score_rows(model, text)):
        if first:
            likely.append(rows.likely())
        divergence += float(rows.divergence(likely[place]).sum())
        parts.append(Scores(rows.losses, rows.leading))  # without the probabilities, which are large
    scores = Scores.joined(parts)
    if not np.isfinite(scores.losses).all():
        raise CapabilityError(f"the logits of {model.card.name} are not finite with KV type {model.card.kv_type}")
    return TextScores(scores, divergence, tuple(answer))


def scoring_nbytes(prompts: Sequence[EncodedPrompt], *, max_tokens: int, rows: int) -> int:
    """Bound the memory of scoring besides the model: the results kept per position, and a pass's probabilities.

    rows: the logits' width.
    """
    positions = sum(len(prompt.tokens) + max_tokens for prompt in prompts)
    return Likely.nbytes(positions) + positions * SCORE_NBYTES + WORKING * PIECE * rows * 4
