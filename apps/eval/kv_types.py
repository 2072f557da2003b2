"""Runs one engine with several types of keys and values over the same texts. Shows and stores nothing.

One type is open at a time, so that memory stays that of one model: of the reference's rows the likeliest ids are kept.
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

__all__ = ["Offer", "TypeOpener", "compare_types", "installed_runtimes", "offered_types", "scoring_nbytes"]

SCORE_NBYTES = len(KV_TYPES) * (4 + 8)
"""A position's loss and leading id with every type."""
WORKING = 3
"""Arrays of a pass's rows that are there at once: the probabilities, and what they are made of."""

TypeOpener: TypeAlias = Callable[[str], AbstractContextManager[LanguageModel]]
"""Opens one model with keys and values of this type."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The KV types that a model can have on an engine, the most precise first; of each other one, why it cannot."""

    types: tuple[str, ...]
    refused: dict[str, str]

    def asked(self, kv_type: str | None) -> tuple[str, ...]:
        """Return the reference and what is compared with it: the type asked for, or all; empty: there is none."""
        if kv_type is not None:
            return (self.types[0], kv_type) if kv_type in self.types else ()
        return self.types if len(self.types) > 1 else ()

    def reason(self, kv_type: str | None) -> str:
        """Say why there is nothing to compare, and what to do."""
        return self.refused[kv_type or SMALLER_KV]


def installed_runtimes() -> list[str]:
    """Return the runtimes whose engine is installed and says what it can run."""
    return [name for name in installed(RUNTIMES) if engine_version(name) is not None]


def offered_types(runtime: str, manifest: Manifest, root: Path, *, role: str) -> Offer:
    """Ask an engine, which loads nothing for it. Raises RuntimeUnavailable, InputError for an unknown engine."""
    factory = find_factory(runtime)
    if not isinstance(factory, RuntimeFactory):
        raise CapabilityError(f"the runtime {runtime} does not say which types of keys and values it has")
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
    """Score the prompts and the first type's greedy answers to them with every type. Raises as `check_room`.

    Every type is compared with the first, whose own figures are the first of the result.
    """
    texts: list[ScoredText] = []
    likely: list[list[Likely]] = []
    found: list[list[TextScores]] = []
    nbytes: list[int] = []
    for kv_type in kv_types:
        with open_model(kv_type) as model:
            if model.card.kv_type != kv_type:
                raise CapabilityError(f"{model.card.name} was opened with {model.card.kv_type} keys, not {kv_type}")
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
    """Score a text beside the reference's rows; of the reference itself, whose list is empty, they are kept now."""
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
        raise CapabilityError(f"the logits of {model.card.name} are not numbers with {model.card.kv_type} keys")
    return TextScores(scores, divergence, tuple(answer))


def scoring_nbytes(prompts: Sequence[EncodedPrompt], *, max_tokens: int, rows: int) -> int:
    """Bound what scoring holds beside the model: of each position what is kept, and a pass's probabilities.

    rows: the logits' width.
    """
    positions = sum(len(prompt.tokens) + max_tokens for prompt in prompts)
    return Likely.nbytes(positions) + positions * SCORE_NBYTES + WORKING * PIECE * rows * 4
