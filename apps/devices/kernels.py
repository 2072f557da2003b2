"""Which kernels run the models of a pack here, graph by graph, and what stays with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from edgedecode.engines.engine_factory import GraphKernels, KernelsFactory
from edgedecode.engines.registry import find_factory
from edgedecode.errors import RuntimeUnavailable
from edgedecode.pack.gate import check_pack
from edgedecode.pack.hub import find_pack

__all__ = ["ModelKernels", "pack_kernels"]


@dataclass(frozen=True, slots=True)
class ModelKernels:
    """A graph of one of the pack's models on one runtime."""

    runtime: str
    role: str
    graph: GraphKernels

    @property
    def rest(self) -> str:
        """What stays with the engine, in words."""
        left = ", ".join(f"{count} {what}" for what, count in self.graph.left.items())
        return self.graph.reason or left or "nothing"

    def as_dict(self) -> dict[str, object]:
        return {"runtime": self.runtime, "model": self.role, **asdict(self.graph)}


def pack_kernels(pack: str, runtimes: Sequence[str]) -> list[ModelKernels]:
    """List the graphs of a pack on those of the runtimes that have kernels of ours. Raises ManifestError."""
    root = find_pack(pack)
    manifest = check_pack(root)
    found: list[ModelKernels] = []
    for name in runtimes:
        try:
            factory: object = find_factory(name)
        except RuntimeUnavailable:
            continue
        if isinstance(factory, KernelsFactory):
            found += [
                ModelKernels(name, role, graph)
                for role in manifest.models
                for graph in factory.graph_kernels(manifest.located(role), root)
            ]
    return found
