"""How a pack runs on this machine: the engine that `--runtime auto` chooses and why, and the kernels of its graphs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedecode.engines.engine_factory import GraphKernels, KernelsFactory
from edgedecode.engines.registry import find_factory
from edgedecode.engines.selection import EngineRequest, engine_choice
from edgedecode.errors import RuntimeUnavailable
from edgedecode.library.find import find_pack
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import shown


@dataclass(frozen=True, slots=True)
class AutoChoice:
    """The pack's name, the engine (empty if none can run it), and the reason in one line."""

    pack: str
    engine: str
    reason: str

    @property
    def line(self) -> str:
        return shown(f"--runtime auto, pack {self.pack}: {self.engine or 'no engine'} ({self.reason})")


def explain(pack: str | None) -> AutoChoice | None:
    """Return auto's choice for a pack (None: the bundled one); None if there is no bundled one.

    Raises ManifestError for a folder that is not a pack.
    """
    if pack is None and not Path(BUNDLED_PACK).is_dir():
        return None
    root = find_pack(pack)
    manifest = Manifest.load(root)
    choice = engine_choice(manifest, root, EngineRequest())
    return AutoChoice(manifest.name, choice.names[0] if choice.names else "", choice.reason)


def pack_kernels(pack: str, runtimes: Sequence[str]) -> list[tuple[str, str, GraphKernels]]:
    """List the graphs of a pack, after runtime and role, on each runtime that has edgedecode's kernels.

    Raises ManifestError.
    """
    root = find_pack(pack)
    manifest = check_pack(root)
    found: list[tuple[str, str, GraphKernels]] = []
    for name in runtimes:
        try:
            factory: object = find_factory(name)
        except RuntimeUnavailable:
            continue
        if isinstance(factory, KernelsFactory):
            found += [
                (name, role, graph)
                for role in manifest.models
                for graph in factory.graph_kernels(manifest.located(role), root)
            ]
    return found
