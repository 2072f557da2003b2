"""Drafts with a model whose tokenizer is another than the target's, by way of the text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.decoding.wrapped_model import WrappedModel
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import UniformSource
from edgedecode.text.tokenizer import Tokenizer

from .foreign_text import ForeignText
from .model_drafter import Guess, ModelDrafter
from .model_state import ModelState
from .source import DraftSetting


class TextModel(WrappedModel):
    """A draft model whose tokens are not the target's, so that it drafts by text."""

    def __init__(
        self, model: LanguageModel, *, tokenizer: Tokenizer, target: Tokenizer, closed: Callable[[], None]
    ) -> None:
        super().__init__(model, closed=closed)
        self.card = replace(model.card, lora_rank=0, lora_modules=())
        self.tokenizer, self.target = tokenizer, target

    def drafter(self, setting: DraftSetting) -> Drafter:
        return TextDrafter(self, setting)


class TextDrafter(ModelDrafter):
    """Proposes the text of the draft model's arg-max chain, in tokens of the target.

    The target's noise is per token of its own vocabulary, so that sampled answers are drafted with the arg-max too.
    Options of sampling that name tokens are the target's, and only penalties apply to the draft.
    """

    def __init__(self, model: TextModel, setting: DraftSetting) -> None:
        if setting.sampled:
            raise CapabilityError(
                "the ratio rule compares distributions over the same tokens, and the draft model has a tokenizer of "
                "its own: use the match rule"
            )
        sampling = replace(setting.sampling, temperature=0.0, logit_bias=(), dry_multiplier=0.0, mirostat=0)
        own = replace(
            setting,
            vocabulary_size=model.card.vocabulary_size,
            ends=model.tokenizer.special_ids,
            sampling=sampling,
            noise=None,
        )
        super().__init__(model, own, make=partial(ModelState, model, capacity=setting.capacity, outgrown=True))
        self._text, self._target_ends = ForeignText(model.target, model.tokenizer), setting.ends
        self._begun: bool = False
        self._drafted_at, self._held = -1, b""
        """Length of the context at the last proposal, and the part of a character that it ended with."""

    def begin(self, context: Sequence[int]) -> None:
        self._text.begin(context)
        self._begun, self._drafted_at = False, -1

    def unread(self, context: Sequence[int]) -> int:
        return self.state.unread(self._own(context))

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        own = self._own(context)
        self._drafted_at, self._held = len(context), self._text.held
        longest = ceil(limit * max(1.0, len(own) / len(context)))
        if (chain := self._chain(own, longest, rng, plan)) is None:
            return EMPTY_DRAFT
        dropped = chain.guess.tokens[len(chain.tokens) :] if chain.stopped else ()
        bytes_of = self._text.draft.bytes_of
        found = self._text.proposed(bytes_of(chain.tokens), bytes_of(dropped))
        found += self._end(chain.tokens[-1:])
        return Draft(tuple(found[:limit]), source=self.name) if found else EMPTY_DRAFT

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Update the confidence with the tokens whose text the verdict confirms or contradicts."""
        guess, self._guess = self._guess, Guess()
        if guess.at < 0 or self._drafted_at != len(context) - len(verdict.tokens):
            return
        text = self._held + self._text.target.bytes_of(verdict.tokens)
        accepted = 0
        for token in guess.tokens:
            piece = self._text.draft.bytes_of([token])
            known, text = text[: len(piece)], text[len(piece) :]
            if known != piece or not piece:  # a special token has no text
                wrong = not piece.startswith(known)  # else the text ends within it
                self._confidence.learn(guess.seen[: accepted + wrong], accepted)
                return
            accepted += 1
        self._confidence.learn(guess.seen, accepted)

    def _end(self, last: Sequence[int]) -> list[int]:
        """Return the target's end token if a draft's last one is spelled like it."""
        target, draft = self._text.target.tokenizer, self._text.draft.tokenizer
        names = (draft.token_text(token) for token in last if token in self._setting.ends)
        ids = (target.token_to_id(name or "") for name in names)
        return [id for id in ids if id in self._target_ends and id is not None]

    def _own(self, context: Sequence[int]) -> list[int]:
        """Return the draft's tokens of the context. The last ones may be others than before."""
        own = self._text.tokens(context)
        if not self._begun:
            super().begin(own)
            self._begun = True
        self.state.doubt(self._text.same)
        return own
