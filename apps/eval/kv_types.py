"""Runs one engine with several KV cache types on the same texts.

Only one model is open at a time, to save memory. Of the reference's rows only the likeliest ids are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
from edgedecode.pack.manifest import Manifest

from ..terminal import progress
from .greedy_texts import EncodedPrompt, check_room, decode_all
from .kv_quality import KvQuality, TextScores, quality_of

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
            found.append([])
            with progress(f"{what}: {kv_type} scores", len(texts)) as advance:
                for text, answer, rows in zip(texts, answers, likely, strict=True):
                    found[-1].append(_scored(model, text, answer, rows))
                    advance()
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
