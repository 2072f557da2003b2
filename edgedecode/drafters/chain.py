"""A draft model's first tokens, then what followed them before (Cascade, 2312.11462): its sureness, a copy's length."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.probs import UniformSource
from edgedecode.decoding.verify import Verdict

from .model import ModelDrafter, ModelSource
from .source import DraftSetting
from .suffix import SuffixDrafter, SuffixSource

__all__ = ["ChainDrafter", "ChainSource"]

HEAD = 2
"""Tokens the model drafts."""


class ChainSource:
    """Chains the session's model and suffix drafters; those that are not open it opens for itself.

    Raises CapabilityError when the pack has no draft model.
    """

    name = "chain"
    needs_model = True
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._models, self._suffixes = ModelSource(), SuffixSource()

    def open(self, setting: DraftSetting) -> Drafter:
        model, suffix = setting.opened.get("model"), setting.opened.get("suffix")
        own: list[Drafter] = []
        if not isinstance(model, ModelDrafter):
            own.append(model := self._models.open(setting))
        if not isinstance(suffix, SuffixDrafter):
            try:
                own.append(suffix := self._suffixes.open(setting))
            except BaseException:
                for drafter in own:
                    drafter.close()
                raise
        assert isinstance(model, ModelDrafter)
        assert isinstance(suffix, SuffixDrafter)
        return ChainDrafter(model, suffix, own=own)

    def close(self) -> None:
        self._models.close()
        self._suffixes.close()


class ChainDrafter:
    """Proposes `HEAD` tokens of the model's and the suffix drafter's continuation of them.

    own: which of the two nobody else tells of rounds; they are closed with this one.
    """

    name = "chain"
    free = False

    def __init__(self, model: ModelDrafter, suffix: SuffixDrafter, *, own: Sequence[Drafter] = ()) -> None:
        self._model = model
        self._suffix = suffix
        self._own = own

    @property
    def nbytes(self) -> int:
        return sum(drafter.nbytes for drafter in self._own)

    def begin(self, context: Sequence[int]) -> None:
        for drafter in self._own:
            drafter.begin(context)

    def unread(self, context: Sequence[int]) -> int:
        return self._model.unread(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        head = self._model.propose(context, min(limit, HEAD), rng, plan).tokens
        if not head:
            return EMPTY_DRAFT
        tail = self._suffix.continuation(context, head, limit - len(head))
        return Draft((*head, *tail), source=self.name)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        for drafter in self._own:
            drafter.observe(context, verdict)

    def close(self) -> None:
        for drafter in self._own:
            drafter.close()
