"""A recorded trace fed to a fresh scheduler: the same signals must give the same plans."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from edgedecode.decoding.policy import Plan
from edgedecode.pack.hub import find_pack
from edgedecode.pack.integrity import pack_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.schedule.trace import replay

__all__ = ["Difference", "Replay", "replay_trace"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first plan that came out otherwise; `number` counts from 1."""

    number: int
    recorded: Plan
    planned: Plan


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found; it ends at the first difference."""

    plans: int
    difference: Difference | None

    def line(self) -> str:
        """Say it in a line."""
        if self.difference is None:
            return f"{self.plans} plans, all equal"
        return (
            f"plan {self.difference.number} differs: recorded {self.difference.recorded}, "
            f"a fresh scheduler plans {self.difference.planned}"
        )


def replay_trace(arguments: Namespace) -> Replay:
    """Replay `arguments.replay`. Raises InputError for what is not a trace, or not one of the pack's."""
    return _compare(Path(arguments.replay), pack=_digest(arguments.model))


def _compare(path: Path, *, pack: str) -> Replay:
    number = 0
    for number, step in enumerate(replay(path, pack=pack), start=1):
        if step.plan != step.recorded:
            return Replay(number, Difference(number, step.recorded, step.plan))
    return Replay(number, None)


def _digest(pack: str | None) -> str:
    return pack_digest(Manifest.load(find_pack(pack)))
