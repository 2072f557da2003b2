"""Puts what was trained into its pack if that is clearly better on texts that were held out; else leaves the pack.

Everything is measured in a copy: whatever stops the work, the pack is the old one or, at the end, the new one.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pack.new_folder import link_or_copy

from ..stages import Stages
from .kinds.kind import TRIAL, Kind
from .speed import speed_ups, tokens_a_round
from .texts import Text


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of a difference over texts, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> "Gain":
        """before, after: the same texts' values."""
        differences = [later - earlier for earlier, later in zip(before, after, strict=True)]
        count = len(differences)
        return cls(mean(differences), stdev(differences) / count**0.5 if count > 1 else inf)

    @property
    def is_clear(self) -> bool:
        return self.mean > self.error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The speeds over plain decoding before and with it.

    gain: what decides whether the pack is changed: tokens a round if it replaces one whose steps cost the same, since
    these are not timed; otherwise speed. texts: how many were compared.
    """

    before: float
    after: float
    gain: Gain
    texts: int
    replaces: bool

    @property
    def added(self) -> bool:
        return self.gain.is_clear


def add_if_better(
    root: Path, folder: Path, kind: Kind, texts: Sequence[Text], stages: Stages, *, adapter: str | None = None
) -> Outcome:
    """Compare the pack with and without what was trained in the folder. Raises as `Kind.add` and `speed_ups`.

    adapter: that the target answers with.
    """
    replaces = kind.is_alike(root)
    with (
        stages.stage("measuring the speed", (4 if replaces else 2) * len(texts)) as advance,
        pack_copy(root, folder) as trial,
    ):
        kind.add(trial, folder, stages)
        before, after = (speed_ups(pack, texts, adapter=adapter, advance=advance) for pack in (root, trial))
        gain = Gain.of(before, after)
        if replaces:
            rounds = partial(tokens_a_round, drafter=kind.drafter, adapter=adapter, advance=advance)
            gain = Gain.of(rounds(root, texts), rounds(trial, texts))
    outcome = Outcome(mean(before), mean(after), gain, len(texts), replaces)
    if outcome.added:
        kind.add(root, folder, stages)
    return outcome


@contextmanager
def pack_copy(root: Path, folder: Path) -> Iterator[Path]:
    """Yield a copy of the pack in the folder, of the same files where the disk allows it. Copies that killed
    processes left there are removed."""
    for left in folder.glob(f"{TRIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=TRIAL, dir=folder) as place:
        trial = Path(place)
        for name in (MANIFEST_NAME, *Manifest.load(root).files):
            (trial / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(root / name, trial / name)
        yield trial
