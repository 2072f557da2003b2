"""Drafts with the draft model's trimmed head (VocabTrim 2506.22694): less work per token, but some ids are missing."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import HeadedModel
from edgedecode.errors import CapabilityError

from .model_drafter import ModelDrafter, usable_model
from .source import DraftSetting


class TrimSource:
    """Opens model drafters with the trimmed head, or with a draft model that has only a trimmed head.

    Raises CapabilityError if the pack has no draft model, or an untrimmed one.
    """

    name = "trim"
    needs_model = True
    needs: Sequence[str] = ("trim",)

    def open(self, setting: DraftSetting) -> Drafter:
        model = usable_model(setting)
        if isinstance(model, HeadedModel) and (head := model.trimmed) is not None:
            vocabulary = TrimmedVocabulary(head.token_ids, setting.vocabulary_size)
            return ModelDrafter(model, setting, name=self.name, head=head, vocabulary=vocabulary)
        if model.card.token_ids is not None:
            return ModelDrafter(model, setting, name=self.name)
        raise CapabilityError("this pack's draft model has no trimmed vocabulary: `edgedecode trim PACK` adds one")

    def close(self) -> None:
        """Nothing to release: the pair owns the model."""
