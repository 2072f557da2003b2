"""Drafts with the rows of the draft model's head that the context makes likely: no calibration, chosen as text goes."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import Draft, TrimmedVocabulary
from edgedecode.decoding.model import HeadedModel, LocalHead
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.probs import UniformSource
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError

from .local_vocabulary import LocalVocabulary
from .model import ModelDrafter, shared_reading, usable_model
from .reading import Reading
from .source import DraftSetting

__all__ = ["LocalDrafter", "LocalSource"]

THOUGHT_OF = 3
"""Where one of its drafts ended, so many of the target's likeliest ids are taken in."""


class LocalSource:
    """Opens drafters on the draft model's local head. Raises CapabilityError where it has none."""

    name = "local"
    needs_model = True
    needs: Sequence[str] = ("local",)

    def open(self, setting: DraftSetting) -> Drafter:
        model = usable_model(setting)
        if not isinstance(model, HeadedModel) or (head := model.local) is None:
            raise CapabilityError(
                "this pack's draft model has no head for a local vocabulary here: `edgedecode trim PACK --local` gives "
                "it one, for ONNX Runtime"
            )
        drafter = ModelDrafter(
            model, setting, name=self.name, reading=shared_reading(setting, model), head=head, vocabulary=None
        )
        return LocalDrafter(drafter, head, setting)

    def close(self) -> None:
        """The model belongs to the pair."""


class LocalDrafter:
    """A model drafter whose vocabulary follows the text: its tokens, what the target thought of, and the last draft."""

    name = "local"
    free = False

    def __init__(self, drafter: ModelDrafter, head: LocalHead, setting: DraftSetting) -> None:
        self._drafter = drafter
        self._head = head
        self._vocabulary_size = setting.vocabulary_size
        self._vocabulary = LocalVocabulary(size=setting.vocabulary_size, most=head.most, always=setting.ends)
        self._known: int | None = None
        """How many of the context's tokens were taken in; None: another one began, of which nothing was needed yet."""

    @property
    def nbytes(self) -> int:
        return self._drafter.nbytes

    @property
    def reading(self) -> Reading:
        return self._drafter.reading

    @property
    def vocabulary(self) -> TrimmedVocabulary:
        """What it could say now."""
        said = self._drafter.vocabulary
        if said is None or said.ids is not self._vocabulary.ids:
            said = TrimmedVocabulary(self._vocabulary.ids, self._vocabulary_size)
            self._drafter.speak(said)
        return said

    def begin(self, context: Sequence[int]) -> None:
        self._drafter.begin(context)
        self._known = None

    def unread(self, context: Sequence[int]) -> int:
        return self._drafter.unread(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._follow(context, len(context))
        if not len(self._vocabulary):
            self._vocabulary.add(context[-1:])
        self._head.choose(self.vocabulary.ids)  # another session may have chosen others
        return self._drafter.propose(context, limit, rng, plan)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        self._drafter.observe(context, verdict)
        if not len(verdict.draft):
            return
        self._follow(context, len(context) - len(verdict.tokens))  # what it could have said in this round
        if verdict.draft.source == self.name:  # looking at a wide row costs as much as it is worth elsewhere
            last = verdict.path[-1] + 1 if verdict.path else 0
            self._vocabulary.add(verdict.top(THOUGHT_OF, [last])[0, ::-1])
            self._vocabulary.add(verdict.draft.tokens)

    def close(self) -> None:
        self._drafter.close()

    def _follow(self, context: Sequence[int], end: int) -> None:
        """Take in the context's tokens up to `end`."""
        if self._known is None:
            self._vocabulary.begin(context[:end])
            self._known = end
            return
        self._vocabulary.add(context[self._known : end])
        self._known = max(self._known, end)
