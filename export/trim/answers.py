"""Generates the target's answers to prompts, the text that drafts are calibrated on. Interrupted runs are resumed.

Answers are cached for a month and readable by this user only, since the prompts may be private. The engines decode one
sequence at a time, so prompts are answered sequentially, without a drafter: the text depends on pack, prompt and seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time

from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.cache import cache_folder, close_to_others, facts_key, keep_json, kept_json
from edgedecode.decoding.stats import FinishReason
from edgedecode.engines.selection import engine_version
from edgedecode.errors import ContextExceeded
from edgedecode.text.prompts import Prompt

from .trim_texts import ScoredText

TEMPERATURE = 0.8
"""Sampling temperature of every answer to a prompt after the first, which is greedy."""
_FORMAT = 1
_MAX_AGE_SECONDS = 30 * 24 * 3600
_MAX_CACHE_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Answering:
    """Settings for answering prompts."""

    max_tokens: int
    answers: int = 1
    """Answers per prompt: the first is greedy, the others are sampled."""
    seed: int = 0


class KeptAnswers:
    """Finished answers in the user's cache, one file each; does nothing without a cache. Damaged files are ignored."""

    def __init__(self, folder: Path | None, *, identity: str = "", vocabulary_size: int) -> None:
        self._folder = folder
        self._identity = identity
        self._vocabulary_size = vocabulary_size

    @classmethod
    def of(cls, pair: Pair) -> KeptAnswers:
        folder = cache_folder("trim", private=True)
        if folder is not None:
            _prune(folder)
        return cls(folder, identity=_identity(pair), vocabulary_size=pair.tokenizer.size)

    def get(self, key: str) -> list[ScoredText] | None:
        """Return an answer's texts, one per turn, or None if it is not cached."""
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, KeyError):
            texts = kept_json(self._path(self._folder, key), dict[str, list[ScoredText]])["texts"]
            if not all(map(self._is_sound, texts)):
                return None
            os.utime(self._path(self._folder, key))  # pruning evicts the least recently used
            return texts
        return None

    def add(self, key: str, texts: Sequence[ScoredText]) -> None:
        if self._folder is not None:
            keep_json(self._path(self._folder, key), {"texts": [asdict(text) for text in texts]}, private=True)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / f"{self._identity}-{key}.json"

    def _is_sound(self, text: ScoredText) -> bool:
        known = all(0 <= token < self._vocabulary_size for token in text.tokens)
        return known and 1 <= text.start <= len(text.tokens)


def _prune(folder: Path) -> None:
    """Remove answers unused for a month, then the oldest above the size limit; make the rest private to the user."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            close_to_others(path)
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    room = _MAX_CACHE_NBYTES
    for used, nbytes, path in sorted(found, reverse=True):
        room -= nbytes
        if room < 0 or time() - used > _MAX_AGE_SECONDS:
            with suppress(OSError):
                path.unlink()


def answer_prompts(
    pair: Pair,
    prompts: Sequence[Prompt],
    answering: Answering,
    *,
    kept: KeptAnswers,
    advance: Callable[[int], None] = lambda amount: None,
) -> list[list[ScoredText]]:
    """Return each prompt's texts: for every turn, its context followed by its answer. Calls `advance(1)` per answer.

    Raises ContextExceeded if a conversation does not fit the target's context.
    """
    found = []
    for group, prompt in enumerate(prompts):
        texts = []
        for number in range(answering.answers):
            key = _key(prompt, answering, number)
            answer = kept.get(key)
            if answer is None:
                answer = _answer(pair, prompt, answering, number=number, key=key)
                kept.add(key, answer)
            texts += [ScoredText(each.tokens, each.start, each.ended, each.greedy, group) for each in answer]
            advance(1)
        found.append(texts)
    return found


def _answer(pair: Pair, prompt: Prompt, answering: Answering, *, number: int, key: str) -> list[ScoredText]:
    """Answer a prompt's turns in a new session, so that earlier prompts cannot affect rounding."""
    sampling = SamplingOptions(temperature=TEMPERATURE if number else 0.0)
    options = SessionOptions(sampling=sampling, drafter="none", seed=int(key[:12], 16))
    texts = []
    with pair.session(options, messages=prompt.history) as session:
        for turn in prompt.turns:
            try:
                reply = session.generate(turn, max_tokens=answering.max_tokens)
            except ContextExceeded as error:
                raise ContextExceeded(f"the prompt {turn[:40]!r} cannot be answered: {error}") from None
            start = len(session.tokens) - len(reply.tokens)
            ended = reply.finish_reason is FinishReason.STOP and len(reply.tokens) < answering.max_tokens
            texts.append(ScoredText(session.tokens, start, ended=ended, greedy=sampling.greedy))
    return texts


def _key(prompt: Prompt, answering: Answering, number: int) -> str:
    """Return an answer's cache key. Greedy answers do not depend on the seed."""
    seed = answering.seed if number else 0
    value = [asdict(prompt), answering.max_tokens, number, seed, TEMPERATURE]
    return facts_key(*value)


def _identity(pair: Pair) -> str:
    """Return a digest of everything except the prompt that answers depend on. A trim does not change it.

    The engine's thread count is left out: it only affects near ties.
    """
    manifest, entry = pair.manifest, pair.manifest.models["target"]
    names = {entry.weights, entry.gguf, entry.gguf_plan, manifest.tokenizer, manifest.chat_template}
    known = {name: file.sha256 for name, file in manifest.files.items()}
    known |= {name: file.sha256 for name, file in manifest.outside.items()}
    digests = sorted(known[name] for name in names if name in known)
    engine = [pair.runtime, engine_version(pair.runtime)]
    value = [_FORMAT, digests, manifest.tokenizer_digest, asdict(manifest.generation), engine]
    return facts_key(*value)
