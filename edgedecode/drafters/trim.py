"""Drafts with the pack's trimmed draft (VocabTrim 2506.22694): less work per token, but some ids are missing."""

from __future__ import annotations

from edgedecode.decoding.drafter import Drafter

from .model_drafter import ModelDrafter, usable_model
from .source import DraftSetting


class TrimSource:
    """Opens model drafters over the trimmed draft. Raises CapabilityError if the pack has no draft model."""

    name = "trim"
    needs_model = True

    def open(self, setting: DraftSetting) -> Drafter:
        return ModelDrafter(usable_model(setting), setting, name=self.name)

    def close(self) -> None:
        """Nothing to release: the pair owns the model."""
