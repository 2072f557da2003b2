"""Protocols of entry points that are queried before an engine or the export is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from edgedecode.pack.manifest import ModelEntry

    from .interface import Runtime


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine cannot run a model here. told: users are told when another one is taken for this reason."""

    reason: str
    told: bool = False


@runtime_checkable
class RuntimeFactory(Protocol):
    """The target of an entry point of `edgedecode.runtimes`. Its queries must not load an engine into this process.

    A plain callable without these two methods also works: it counts as installed and able.
    """

    def __call__(self) -> Runtime: ...

    def engine_version(self) -> str | None:
        """Return the installed engine's version; None: not installed."""
        ...

    def refusal(
        self, entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]
    ) -> Refusal | None:
        """Return why `Runtime.open` would refuse the model, as far as known without opening it; None: no reason known.

        May try the engine once, in a child process.
        """
        ...


@dataclass(frozen=True, slots=True)
class GraphKernels:
    """The kernels that run a graph. kernels: edgedecode's, by name; empty: the engine's own, for this `reason`."""

    graph: str
    kernels: str
    reason: str = ""
    matrices: int = 0
    """Quantized matrices that run on edgedecode's kernels."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Nodes left to the engine that could make a row's bits depend on the pass width: count by operator and reason."""
    row_invariant: bool = False
    """Whether a row has the same bits at every pass width."""


@runtime_checkable
class KernelsFactory(Protocol):
    """A `RuntimeFactory` whose engine can run edgedecode's kernels."""

    def graph_kernels(self, entry: ModelEntry, root: Path) -> Sequence[GraphKernels]:
        """Return the kernels that run each graph of a model here, without opening a session."""
        ...

    def block_types(self) -> Collection[str]:
        """Return the types of matrices in GGUF files that the kernels run, by ggml's names."""
        ...


class Maker(Protocol):
    """Builds a file that a pack does not contain, from the files that it contains.

    Entry points of group `edgedecode.makers` name callables that return a builder, by file format. Runtimes find it
    this way because they do not import the export, which implements the formats.
    """

    def make(self, entry: ModelEntry, root: Path, out: Path) -> None:
        """Write the file of one model of the pack at `root` to `out`. May leave a partial file on error.

        Raises ManifestError (the pack does not allow it), RuntimeUnavailable (a package is missing) or OSError.
        """
        ...
