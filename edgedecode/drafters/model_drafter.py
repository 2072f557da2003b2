"""Drafts with the pack's draft model, which reads nothing until it is asked for a draft."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft, DraftMode, TrimmedVocabulary
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import Probs, UniformSource
from edgedecode.sampling.row_draw import Leading
from edgedecode.sampling.sampler import Sampler

from .confidence import Confidence, Features, features
from .model_state import ModelState
from .source import ADD_DRAFT, DrafterSource, DraftSetting, ForeignDraft, Scheduled

PROBABILITY_NBYTES = 8 + 8
"""An id and its probability."""


class ModelSource(DrafterSource):
    """Opens a drafter over the pair's draft model. Raises CapabilityError when the pack has none."""

    name = "model"
    scheduled = Scheduled.BY_NAME  # the pack says which of its drafts is scheduled (`DraftingFacts.drafts`)
    needs_model = samples = True

    def open(self, setting: DraftSetting) -> Drafter:
        model = usable_model(setting, foreign=True)
        return model.drafter(setting) if isinstance(model, ForeignDraft) else ModelDrafter(model, setting)


class HeadSource(DrafterSource):
    """Opens drafters over the pair's head. Raises CapabilityError if there is none, or nothing that it could read."""

    name = "head"
    scheduled = Scheduled.BY_NAME  # as for draft models
    needs_model = samples = True

    def open(self, setting: DraftSetting) -> Drafter:
        from edgedecode.decoding.heads import Assistant, BlockHead, DraftHead, FeatureState  # late: most have no head

        head, target = setting.draft_model, setting.target_state
        if not isinstance(head, DraftHead | BlockHead):
            raise CapabilityError("this pack has no drafting head: `edgedecode head add PACK SOURCE` adds one")
        if not isinstance(target, FeatureState):
            raise CapabilityError("the target's engine does not show what a drafting head reads: use --runtime onnx")
        target.keep_features()
        make: Callable[[], ModelState]
        if isinstance(head, Assistant):
            from .assistant_state import AssistantState

            make = partial(AssistantState, head, target)
        elif isinstance(head, DraftHead):
            from .head_state import HeadState

            make = partial(HeadState, head, target, capacity=setting.capacity)
        else:
            from .block_state import BlockState

            make = partial(BlockState, head, target, capacity=setting.capacity)
        return ModelDrafter(head, setting, name=self.name, make=make)


def usable_model(setting: DraftSetting, *, foreign: bool = False) -> LanguageModel:
    """Return the setting's draft model. Raises CapabilityError if there is none, or it cannot roll back.

    foreign: whether it may be a `ForeignDraft`.
    """
    if setting.draft_model is None:
        raise CapabilityError(f"there is no draft model: use --drafter suffix, {ADD_DRAFT}")
    if isinstance(setting.draft_model, ForeignDraft) and not foreign:
        raise CapabilityError(
            "the draft model has a tokenizer of its own, so that only its text can be verified: use --drafter model"
        )
    if not setting.draft_model.card.rollback:
        raise CapabilityError(
            "this pack's draft model has recurrent layers, which cannot roll back a draft: use --drafter suffix"
        )
    return setting.draft_model


def join_state(
    setting: DraftSetting, model: LanguageModel, user: str, *, make: Callable[[], ModelState] | None = None
) -> ModelState:
    """Return the session's state of this model, and add the drafter `user` to its users until it leaves.

    make: makes the first one's, unless it is a plain state.
    """

    def plain() -> ModelState:
        return ModelState(model, capacity=setting.capacity, tree=setting.tree)

    return setting.states.join(model, user, make or plain)


class FullRows:
    """Expands the rows of a trimmed draft to the full vocabulary; returns those of the full one as they are."""

    def __init__(self, vocabulary: TrimmedVocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._full: FloatArray | None = None

    def __call__(self, row: FloatArray) -> FloatArray:
        """Return logits [vocabulary], valid until the next call."""
        if self._vocabulary is None:
            return row
        if self._full is None:
            self._full = np.full(self._vocabulary.size, -np.inf, dtype=np.float32)
        self._full[self._vocabulary.ids] = row[: len(self._vocabulary)]
        return self._full


@dataclass(slots=True)
class Guess:
    """The last proposal, including the token dropped for low confidence, until the emitted tokens are known."""

    at: int = -1
    tokens: list[int] = field(default_factory=list)
    seen: list[Features] = field(default_factory=list)

    @classmethod
    def under(cls, plan: Plan, at: int) -> "Guess":
        """Return that of a proposal at this position; it counts only if the plan lets confidence end the proposal."""
        return cls(at if plan.floor > 0 else -1)


@dataclass(slots=True)
class Chain:
    """A draft as it grows. The model has read everything before its last token, and not that one.

    at: position of its first token. alive: chance that it is accepted. stopped: a token was dropped for low confidence,
    and the model has read the last one.
    """

    at: int
    guess: Guess
    tokens: list[int] = field(default_factory=list)
    probs: list[Probs] = field(default_factory=list)
    alive: float = 1.0
    stopped: bool = False


class ModelDrafter:
    """Proposes the draft model's arg-max chain, or the tokens that the target's noise samples from its rows.

    For the ratio rule it samples from its own processed rows.
    """

    free = False

    def __init__(
        self,
        model: LanguageModel,
        setting: DraftSetting,
        *,
        name: str = "model",
        make: Callable[[], ModelState] | None = None,
    ) -> None:
        self.name = name
        kept = distributions_nbytes(setting.vocabulary_size, setting.draft_max) if setting.sampled else 0
        self._distributions = setting.budget.reserve(f"distributions:{name}", kept)
        try:
            self.state = join_state(setting, model, name, make=make)
        except BaseException:
            self._distributions.release()
            raise
        self._setting = setting
        self._vocabulary = vocabulary_of(model, setting.vocabulary_size)
        self._full_rows = FullRows(self._vocabulary)
        draws = setting.sampled or setting.noise is not None
        options = setting.sampling if draws else replace(setting.sampling, temperature=0.0)
        self._sampler = Sampler(options, vocabulary_size=setting.vocabulary_size, row_draw=setting.row_draw)
        self._sampler_length = 0
        self._confidence = Confidence()
        self._guess = Guess()

    @property
    def nbytes(self) -> int:
        return self._distributions.nbytes + self.state.nbytes_of(self.name)

    def begin(self, context: Sequence[int]) -> None:
        self.state.begin(context)
        self._guess = Guess()
        self._sampler.begin(context)
        self._sampler_length = len(context)

    def unread(self, context: Sequence[int]) -> int:
        return self.state.unread(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        chain = self._chain(context, limit, rng, plan)
        return EMPTY_DRAFT if chain is None else self._draft(chain)

    def _chain(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan) -> Chain | None:
        """Return what follows the context, of at most `limit` tokens; None: there is no room."""
        limit = self.state.reach(context, limit, plan)
        if limit <= 0:
            return None
        self._sampler.extend(context[self._sampler_length :])
        self._sampler_length = len(context)
        row: FloatArray | None = self.state.catch_up(context)
        chain = Chain(len(context), Guess.under(plan, len(context)))
        self._guess = chain.guess
        self._extend(chain, limit, rng, floor=plan.floor, row=row)
        return chain

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Update the confidence. The model's state catches up with the context at the next draft."""
        guess, emitted = self._guess, verdict.tokens
        if guess.at != len(context) - len(emitted):
            return
        pairs = zip(guess.tokens, emitted, strict=False)
        accepted = next((index for index, (token, actual) in enumerate(pairs) if token != actual), None)
        judged = guess.seen[: len(emitted)]
        self._confidence.learn(judged, len(judged) if accepted is None else accepted)

    def close(self) -> None:
        self._distributions.release()
        self.state.leave(self.name)

    def _extend(self, chain: Chain, limit: int, rng: UniformSource, *, floor: float, row: FloatArray | None) -> None:
        """Draft up to `limit` tokens, an end token, or until the chance that all are accepted falls below `floor`.

        row: the first, which is there already. Under the ratio rule, whether a token is kept must not depend on its id
        (2607.05147).
        """
        tokens, ends = chain.tokens, self._setting.ends
        while not (chain.stopped or len(tokens) >= limit or (tokens and tokens[-1] in ends)):
            if row is None:
                if self.state.room < 2:  # as in `reach`, the next token has a position too
                    break
                row = self.state.follow(tokens[-1:])
            if self._setting.sampled:
                chain.probs.append(self._sampler.probs(self._full_rows(row), tokens))
                tokens.append(chain.probs[-1].draw(rng.random()))
            else:
                self._add(chain, row, floor=floor)
            row = None

    def _add(self, chain: Chain, row: FloatArray, *, floor: float) -> None:
        """Append the token drawn from the row after the chain, unless that lowers its chance below `floor`."""
        known = self._setting.vocabulary_size if self._vocabulary is None else len(self._vocabulary)
        leading = self._setting.row_draw.leading(row[:known]) if floor > 0 else None
        token = self._drawn(row, chain, leading)
        if leading is not None:
            chain.guess.tokens.append(token)
            chain.guess.seen.append(features(leading, len(chain.tokens) + 1))
            chain.alive *= self._confidence.chance(chain.guess.seen[-1])
        chain.stopped = chain.alive < floor
        if not chain.stopped:
            chain.tokens.append(token)

    def _drawn(self, row: FloatArray, chain: Chain, leading: Leading | None) -> int:
        """Sample from the model's row after the chain; reuse `leading` if that is the row's arg-max."""
        ids = None if self._vocabulary is None else self._vocabulary.ids
        if leading is not None and self._sampler.takes_largest:
            return leading.index if ids is None else int(ids[leading.index])
        noise = self._setting.noise
        key = 0 if noise is None else noise.key_at(chain.at + len(chain.tokens))  # without noise the options are greedy
        return self._sampler.draw(row, chain.tokens, key=key, ids=ids)

    def _draft(self, chain: Chain) -> Draft:
        if not chain.tokens:
            return replace(EMPTY_DRAFT, at_once=self.state.at_once)
        draft = Draft(tuple(chain.tokens), source=self.name, vocabulary=self._vocabulary, at_once=self.state.at_once)
        return replace(draft, probs=tuple(chain.probs), mode=DraftMode.SAMPLED) if self._setting.sampled else draft


def distributions_nbytes(vocabulary_size: int, draft_max: int) -> int:
    """Return the memory of the distributions that a draft's tokens are sampled from, kept for verification."""
    return PROBABILITY_NBYTES * vocabulary_size * draft_max


def vocabulary_of(model: LanguageModel, vocabulary_size: int) -> TrimmedVocabulary | None:
    """Return the ids of the rows of the model's logits; None: all ids."""
    token_ids = model.card.token_ids
    return None if token_ids is None else TrimmedVocabulary(token_ids, vocabulary_size)
