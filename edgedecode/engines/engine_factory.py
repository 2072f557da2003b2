"""What is asked of an engine or an export before either is loaded: can it run this, can it make that. No behaviour."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from edgedecode.pack.manifest import ModelEntry

    from .interface import Runtime

__all__ = ["GraphKernels", "KernelsFactory", "Maker", "Refusal", "RuntimeFactory"]


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


@dataclass(frozen=True, slots=True)
class GraphKernels:
    """Which kernels run a pack's graph. kernels: edgedecode's by name; empty: the engine's own, for this `reason`."""

    graph: str
    kernels: str
    reason: str = ""
    matrices: int = 0
    """Quantized matrices that edgedecode's kernels multiply with."""
    left: Mapping[str, int] = field(default_factory=dict)
    """How often the engine keeps what could make a row's bits depend on the pass's width, by operator and reason."""
    row_invariant: bool = False
    """Whether a row has the same bits at every width."""


@runtime_checkable
class KernelsFactory(Protocol):
    """A `RuntimeFactory` whose engine has kernels of edgedecode's."""

    def graph_kernels(self, entry: ModelEntry, root: Path) -> Sequence[GraphKernels]:
        """Say which kernels run each graph of a model here, from the graphs and weights alone; opens no session."""
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
