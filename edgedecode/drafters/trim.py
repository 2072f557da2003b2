"""Drafts with the pack's trimmed draft (VocabTrim 2506.22694): less work per token, but some ids are missing."""

from edgedecode.decoding.drafter import Drafter

from .model_drafter import ModelDrafter, usable_model
from .source import DrafterSource, DraftSetting, Scheduled


class TrimSource(DrafterSource):
    """Opens model drafters over the trimmed draft. Raises CapabilityError if the pack has no draft model."""

    name = "trim"
    scheduled = Scheduled.BY_NAME  # as for the full draft model
    needs_model = samples = True

    def open(self, setting: DraftSetting) -> Drafter:
        return ModelDrafter(usable_model(setting), setting, name=self.name)
