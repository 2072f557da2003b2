"""Puts a trained head into its pack if that is faster on texts that were held out; else leaves the pack as it was."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedecode.pack.entries import HEAD_FILE
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.pack_change import changed_pack

from ..heads.pack_head import add_head, remove_head
from ..stages import Stages
from .speed import speed_up
from .texts import Text

_PREVIOUS = "previous.gguf"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The speeds over plain decoding before and with the head."""

    before: float
    after: float

    @property
    def added(self) -> bool:
        return self.after > self.before


def add_if_faster(root: Path, folder: Path, texts: Sequence[Text], stages: Stages) -> Outcome:
    """Compare the pack with and without the head, in its place. Raises as `add_head` and `speed_up`."""
    with stages.stage("measuring the speed", 2 * len(texts)) as advance:
        before = speed_up(root, texts, advance=advance)
        previous = None
        if Manifest.load(root).head is not None:
            shutil.copy(root / HEAD_FILE, folder / _PREVIOUS)
            previous = remove_head(root)
        kept = False
        try:
            add_head(root, folder)
            outcome = Outcome(before, speed_up(root, texts, advance=advance))
            kept = outcome.added
        finally:
            if not kept:
                if Manifest.load(root).head is not None:
                    remove_head(root)
                if previous is not None:
                    _put_back(root, folder / _PREVIOUS, previous)
    return outcome


def _put_back(root: Path, file: Path, entry: ModelEntry) -> None:
    """Add a head that the pack had, as it was: `add_head` would quantize it again and call it by its copy's name."""
    with changed_pack(root) as change:
        shutil.copyfile(file, change.place(HEAD_FILE))
        change.value["head"] = asdict(entry)
