"""Drafts with the pack's draft model. Reads nothing until it is asked: while speculation is off it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgedecode.errors import CapabilityError
from edgedecode.loop import PREFILL_CHUNK
from edgedecode.probs import Probs
from edgedecode.protocols import Drafter, DraftSetting, LanguageModel, UniformSource
from edgedecode.sampling import Sampler
from edgedecode.tree_shape import MOST_NODES
from edgedecode.types import EMPTY_DRAFT, WHOLE, Draft, DraftMode, FloatArray, Plan
from edgedecode.verify import Verdict

from .confidence import Confidence, Features, features

__all__ = ["ModelDrafter", "ModelSource", "Watcher"]

TREE_ROWS = MOST_NODES // 2 + 1
"""Rows of a pass over a tree's level: nodes with children, and the least branches a state must be able to hold."""

Watcher = Callable[[FloatArray, Sequence[int], Sequence[int]], None]
"""Logits [vocabulary], the path of drafted tokens and the context that they come after."""


class ModelSource:
    """Opens a drafter over the pair's draft model. Raises CapabilityError when the pack has none."""

    name = "model"
    needs_model = True

    def open(self, setting: DraftSetting) -> Drafter:
        if setting.draft_model is None:
            raise CapabilityError("this pack has no draft model: use --drafter ngram, or export the pack with --draft")
        if not setting.draft_model.card.rollback:
            raise CapabilityError(
                "this pack's draft model has recurrent layers, which cannot drop a draft: use --drafter ngram"
            )
        return ModelDrafter(setting.draft_model, setting)

    def close(self) -> None:
        """The model belongs to the pair."""


@dataclass(slots=True)
class _Guess:
    """The last proposal, with the token that was not sure enough to be proposed: what is emitted will judge them."""

    at: int = -1
    tokens: list[int] = field(default_factory=list)
    seen: list[Features] = field(default_factory=list)


class ModelDrafter:
    """Proposes the draft model's own text: its arg-max chain, or what the target's noise draws from its rows.

    For the ratio rule it samples from its processed rows by itself. The state is a cache of `_read`, the tokens that it
    holds from the context's place `_start` on; it is cropped to what the context confirms and catches up in chunks at
    the next proposal (lazy prompt reading, Cascade 2312.11462 reads eagerly and delays the first token).
    """

    name = "model"
    free = False

    def __init__(self, model: LanguageModel, setting: DraftSetting) -> None:
        self._model = model
        self._setting = setting
        rows = TREE_ROWS if setting.tree and model.card.tree else 1
        self._state = model.new_state(min(setting.capacity, model.card.context), rows=rows)
        draws = setting.sampled or setting.noise is not None
        options = setting.sampling if draws else replace(setting.sampling, temperature=0.0)
        self._sampler = Sampler(options, vocabulary_size=setting.vocabulary_size)
        self._sampler_length = 0
        self._read: list[int] = []
        self._start = 0
        self._agreed = 0
        self._confidence = Confidence()
        self._guess = _Guess()
        self.watch: Watcher | None = None
        """Is shown every row that a chain is drafted from."""

    @property
    def nbytes(self) -> int:
        return self._state.nbytes

    def begin(self, context: Sequence[int]) -> None:
        self._agreed = 0
        self._agree(context)
        self._guess = _Guess()
        self._sampler.begin(context)
        self._sampler_length = len(context)

    def unread(self, context: Sequence[int]) -> int:
        self._agree(context)
        return len(context) - self._start - len(self._read)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        limit = self.reach(context, limit, plan)
        if limit <= 0:
            return EMPTY_DRAFT
        self._sampler.extend(context[self._sampler_length :])
        self._sampler_length = len(context)
        row = self._catch_up(context)
        if self._setting.sampled:
            return self._sampled(row, limit, rng)
        return self._drafted(row, limit, context=context, floor=plan.floor)

    def reach(self, context: Sequence[int], limit: int, plan: Plan) -> int:
        """Return how many tokens may be drafted, at most `limit`; where the plan wants a window, begin it."""
        unread = self.unread(context)
        if 0 < plan.read_max < unread:
            self._restart(len(context) - plan.read_max)
        return min(limit, self._state.capacity - (len(context) - self._start))

    def row(self, context: Sequence[int]) -> FloatArray:
        """Read what is missing and return the logits [vocabulary] after the context, a view or not."""
        return self.full(self._catch_up(context))

    def grow(self, tokens: Sequence[int], *, parents: Sequence[int]) -> FloatArray:
        """Append rows of a tree, pending until `keep`, and return their logits [tokens, rows of the model], a view."""
        return self._model.forward(tokens, self._state, parents=parents, rows="all").logits

    def keep(self, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Settle these pending rows, root first, which hold these tokens; drop the others."""
        self._state.keep(path)
        self._read += tokens

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Learn how sure to be. The state catches up when it is asked."""
        guess, emitted = self._guess, verdict.tokens
        if guess.at != len(context) - len(emitted):
            return
        pairs = zip(guess.tokens, emitted, strict=False)
        accepted = next((index for index, (token, said) in enumerate(pairs) if token != said), None)
        judged = guess.seen[: len(emitted)]
        self._confidence.learn(judged, len(judged) if accepted is None else accepted)

    def _drafted(self, row: FloatArray, limit: int, *, context: Sequence[int], floor: float) -> Draft:
        """Draft until the chance that all of it is accepted falls below `floor`; the token that lets it is left out."""
        at = len(context)
        self._guess = guess = _Guess(at if floor > 0 else -1)
        tokens: list[int] = []
        alive = 1.0
        while True:
            full = self.full(row)
            if self.watch is not None:
                self.watch(full, tokens, context)
            q = self._sampler.probs(full, tokens)
            token = int(q.ids[0]) if self._setting.noise is None else self._setting.noise.draw_at(q, at + len(tokens))
            if floor > 0:
                guess.tokens.append(token)
                guess.seen.append(features(row[: self._rows], len(tokens) + 1))
                alive *= self._confidence.chance(guess.seen[-1])
            if alive < floor:
                break
            tokens.append(token)
            if len(tokens) == limit or token in self._setting.ends:
                break
            row = self._read_tokens([token])
        return Draft(tuple(tokens), source=self.name) if tokens else EMPTY_DRAFT

    def _sampled(self, row: FloatArray, limit: int, rng: UniformSource) -> Draft:
        """Draw each token, and tell from what: no look at the token may decide whether it is kept (2607.05147)."""
        tokens: list[int] = []
        probs: list[Probs] = []
        while True:
            probs.append(self._sampler.probs(self.full(row), tokens))
            tokens.append(probs[-1].draw(rng.random()))
            if len(tokens) == limit or tokens[-1] in self._setting.ends:
                break
            row = self._read_tokens(tokens[-1:])
        return Draft(tuple(tokens), probs=tuple(probs), mode=DraftMode.SAMPLED, source=self.name)

    def close(self) -> None:
        self._state.close()

    def _agree(self, context: Sequence[int]) -> None:
        """Drop what was read beyond the first token that differs from the context."""
        end = min(len(self._read), len(context) - self._start)
        while self._agreed < end and self._read[self._agreed] == context[self._start + self._agreed]:
            self._agreed += 1
        if self._start and self._agreed == 0:  # nothing of the window is left
            self._start = 0
        self._crop(self._agreed)

    def _crop(self, length: int) -> None:
        self._agreed = length if length >= self._state.oldest_crop else 0
        del self._read[self._agreed :]
        self._state.crop(self._agreed)

    def _restart(self, start: int) -> None:
        """Forget what was read: the context's place `start` becomes the state's first position."""
        self._start = start
        self._crop(0)

    def _catch_up(self, context: Sequence[int]) -> FloatArray:
        """Read what is missing of a context agreed upon, and return the logits after its last token."""
        if self._start + len(self._read) == len(context):
            self._crop(len(self._read) - 1)
        while len(context) - self._start - len(self._read) > PREFILL_CHUNK:
            read = self._start + len(self._read)
            chunk = context[read : read + PREFILL_CHUNK]
            self._model.forward(chunk, self._state, rows="none")
            self._settle(chunk)
        return self._read_tokens(context[self._start + len(self._read) :])

    def _read_tokens(self, tokens: Sequence[int]) -> FloatArray:
        row: FloatArray = self._model.forward(tokens, self._state, rows="last").logits[0]
        self._settle(tokens)
        return row

    def _settle(self, tokens: Sequence[int]) -> None:
        self._state.keep(range(len(tokens)))
        self._read += tokens

    @property
    def _rows(self) -> int:
        """How many of a row's logits are ids, not padding."""
        token_ids = self._model.card.token_ids
        return self._setting.vocabulary_size if token_ids is None else len(token_ids)

    def full(self, row: FloatArray) -> FloatArray:
        """Spread a trimmed draft's row over the whole vocabulary; other drafts' rows pass through."""
        token_ids = self._model.card.token_ids
        if token_ids is None:
            return row
        full = np.full(self._setting.vocabulary_size, -np.inf, dtype=np.float32)
        full[token_ids] = row[: len(token_ids)]
        return full
