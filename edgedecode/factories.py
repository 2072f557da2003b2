"""What is asked of an engine or an export before either is loaded: can it run this, can it make that. No behaviour."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from edgedecode.manifest import ModelEntry
    from edgedecode.protocols import Runtime

__all__ = ["Maker", "Refusal", "RuntimeFactory"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine cannot run a model here. broken: the engine itself does not run, whatever the model."""

    reason: str
    broken: bool = False


@runtime_checkable
class RuntimeFactory(Protocol):
    """What an entry point of `edgedecode.runtimes` names. What it is asked loads no engine into this process.

    A callable without these two answers serves too: it counts as installed and able.
    """

    def __call__(self) -> Runtime: ...

    def engine_version(self) -> str | None:
        """Return the installed engine's version, None where there is none."""
        ...

    def refusal(
        self, entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]
    ) -> Refusal | None:
        """Say why `Runtime.open` would refuse these, as far as that is known without opening anything; None: it is not.

        An engine may be tried in a child process, once.
        """
        ...


class Maker(Protocol):
    """Makes a file that a pack could hold and does not, from what it holds.

    Entry points of group `edgedecode.makers` name callables that return one, by the file's format. Runtimes find it
    there when they need it: how a format is written is the export's business, which they do not import.
    """

    def make(self, entry: ModelEntry, root: Path, out: Path) -> None:
        """Write the file of one model of the pack at `root` to `out`; it may leave part of one when it raises.

        Raises ManifestError for a pack that it cannot be made of, RuntimeUnavailable for a missing package, OSError.
        """
        ...
