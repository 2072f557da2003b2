"""Runs one engine with several KV cache types on the same texts.

Only one model is open at a time, to save memory. Of the reference's rows only the likeliest ids are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from edgedecode.open_pack import KV_TYPES, SMALLER_KV
from edgedecode.pack.manifest import Manifest

from .greedy_texts import EncodedPrompt, Progress, check_room, decode_all
from .kv_quality import KvQuality, TextScores, quality_of

SCORE_NBYTES = len(KV_TYPES) * (4 + 8)
"""Bytes of a position's loss and top id, over all types."""
WORKING = 3
"""Arrays of a pass's rows in memory at once: the probabilities, and the intermediate results behind them."""

TypeOpener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model with keys and values of this type."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A model's KV types on an engine, the most precise first, and for each other type why it is refused."""

    types: tuple[str, ...]
    refused: dict[str, str]

    def asked(self, kv_type: str | None) -> tuple[str, ...]:
        """Return the reference and the types to compare with it: `kv_type`, or all; empty if there are none."""
        if kv_type is not None:
            return (self.types[0], kv_type) if kv_type in self.types else ()
        return self.types if len(self.types) > 1 else ()

    def reason(self, kv_type: str | None) -> str:
        """Return why there is nothing to compare, and what to do."""
        return self.refused[kv_type or SMALLER_KV]


def installed_runtimes() -> list[str]:
    """Return the runtimes whose engine is installed and reports its version."""
    return [name for name in installed(RUNTIMES) if engine_version(name) is not None]


def offered_types(runtime: str, manifest: Manifest, root: Path, *, role: str) -> Offer:
    """Return a model's KV types on an engine without loading it. Raises RuntimeUnavailable, InputError if unknown."""
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
    return Offer(tuple(kv_type for kv_type in KV_TYPES if kv_type not in refused), refused)


def compare_types(
    open_model: TypeOpener,
    kv_types: Sequence[str],
    prompts: Sequence[EncodedPrompt],
    *,
    max_tokens: int,
    ends: Collection[int],
    progress: Progress,
) -> tuple[KvQuality, ...]:
    """Score the prompts and the first type's greedy answers to them with every type. Raises what `check_room` raises.

    Each result compares a type with the first type; the first result is that of the first type itself.
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
            decoding = progress(f"{kv_type} decodes", len(prompts))
            answers = decode_all(model, prompts, max_tokens=max_tokens, ends=ends, progress=decoding)
            if not found:
                texts = [ScoredText((*own.tokens, *answer), 1) for own, answer in zip(prompts, answers, strict=True)]
                likely = [[] for _ in texts]
            found.append([])
            with progress(f"{kv_type} scores", len(texts)) as advance:
                for text, answer, rows in zip(texts, answers, likely, strict=True):
                    found[-1].append(_scored(model, text, answer, rows))
                    advance(1)
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
        parts.append(Scores(rows.losses, rows.leading))
    scores = Scores(np.concatenate([one.losses for one in parts]), np.concatenate([one.leading for one in parts]))
    if not np.isfinite(scores.losses).all():
        raise CapabilityError(f"the logits of {model.card.name} are not finite with KV type {model.card.kv_type}")
    return TextScores(scores, divergence, tuple(answer))


def scoring_nbytes(prompts: Sequence[EncodedPrompt], *, max_tokens: int, rows: int) -> int:
    """Bound the memory of scoring besides the model: the results kept per position, and a pass's probabilities.

    rows: the logits' width.
    """
    positions = sum(len(prompt.tokens) + max_tokens for prompt in prompts)
    return Likely.nbytes(positions) + positions * SCORE_NBYTES + WORKING * PIECE * rows * 4
