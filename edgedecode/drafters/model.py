"""Drafts with the pack's draft model. Reads nothing until it is asked: while speculation is off it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedecode.errors import CapabilityError
from edgedecode.loop import PREFILL_CHUNK
from edgedecode.probs import Probs
from edgedecode.protocols import Drafter, DraftSetting, LanguageModel, UniformSource
from edgedecode.sampling import Sampler
from edgedecode.types import EMPTY_DRAFT, Draft, DraftMode, FloatArray
from edgedecode.verify import Verdict

__all__ = ["ModelDrafter", "ModelSource"]


class ModelSource:
    """Opens a drafter over the pair's draft model. Raises CapabilityError when the pack has none."""

    name = "model"

    def open(self, setting: DraftSetting) -> Drafter:
        if setting.draft_model is None:
            raise CapabilityError("this pack has no draft model: use --drafter ngram, or export the pack with --draft")
        if not setting.draft_model.card.rollback:
            raise CapabilityError(
                "this pack's draft model has recurrent layers, which cannot drop a draft: use --drafter ngram"
            )
        return ModelDrafter(setting.draft_model, setting)


class ModelDrafter:
    """Proposes the draft model's arg-max chain, or, for the ratio rule, a chain sampled from its processed rows.

    The state is a cache of `_read`, the tokens it holds; it is cropped to what the context confirms and catches up
    in chunks at the next proposal (lazy prompt reading, Cascade 2312.11462 reads eagerly and delays the first token).
    """

    name = "model"

    def __init__(self, model: LanguageModel, setting: DraftSetting) -> None:
        self._model = model
        self._setting = setting
        self._state = model.new_state(min(setting.capacity, model.card.context))
        options = setting.sampling if setting.sampled else replace(setting.sampling, temperature=0.0)
        self._sampler = Sampler(options, vocabulary_size=setting.vocabulary_size)
        self._sampler_length = 0
        self._read: list[int] = []
        self._agreed = 0

    @property
    def nbytes(self) -> int:
        return self._state.nbytes

    def begin(self, context: Sequence[int]) -> None:
        self._agreed = 0
        self._agree(context)
        self._sampler.begin(context)
        self._sampler_length = len(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource) -> Draft:
        limit = min(limit, self._state.capacity - len(context))
        if limit <= 0:
            return EMPTY_DRAFT
        self._sampler.extend(context[self._sampler_length :])
        self._sampler_length = len(context)
        row = self._catch_up(context)
        tokens: list[int] = []
        probs: list[Probs] = []
        while True:
            q = self._sampler.probs(self._full(row), tokens)
            token = q.draw(rng.random()) if self._setting.sampled else int(q.ids[0])
            tokens.append(token)
            probs.append(q)
            if len(tokens) == limit or token in self._setting.ends:
                break
            row = self._read_tokens([token])
        if self._setting.sampled:
            return Draft(tuple(tokens), probs=tuple(probs), mode=DraftMode.SAMPLED, source=self.name)
        return Draft(tuple(tokens), source=self.name)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Nothing to learn: the state catches up when it is asked."""

    def close(self) -> None:
        self._state.close()

    def _agree(self, context: Sequence[int]) -> None:
        """Drop what was read beyond the first token that differs from the context."""
        end = min(len(self._read), len(context))
        while self._agreed < end and self._read[self._agreed] == context[self._agreed]:
            self._agreed += 1
        if self._agreed < self._state.oldest_crop:
            self._agreed = 0  # a window or recurrent memory that cannot go back so far is read again
        del self._read[self._agreed :]
        self._state.crop(self._agreed)

    def _catch_up(self, context: Sequence[int]) -> FloatArray:
        """Read what is missing of the context, and return the logits after its last token."""
        self._agree(context)
        if len(self._read) == len(context):
            del self._read[-1:]
            self._agreed -= 1
            self._agree(context[:-1])
        while len(context) - len(self._read) > PREFILL_CHUNK:
            chunk = context[len(self._read) : len(self._read) + PREFILL_CHUNK]
            self._model.forward(chunk, self._state, rows="none")
            self._settle(chunk)
        return self._read_tokens(context[len(self._read) :])

    def _read_tokens(self, tokens: Sequence[int]) -> FloatArray:
        row: FloatArray = self._model.forward(tokens, self._state, rows="last").logits[0]
        self._settle(tokens)
        return row

    def _settle(self, tokens: Sequence[int]) -> None:
        self._state.keep(range(len(tokens)))
        self._read += tokens

    def _full(self, row: FloatArray) -> FloatArray:
        """Spread a trimmed draft's row over the whole vocabulary; other drafts' rows pass through."""
        token_ids = self._model.card.token_ids
        if token_ids is None:
            return row
        full = np.full(self._setting.vocabulary_size, -np.inf, dtype=np.float32)
        full[token_ids] = row[: len(token_ids)]
        return full
