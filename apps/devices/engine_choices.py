"""Which engine `--runtime auto` takes for a pack, and why, from what was measured here or is measured now."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from edgedecode.engines.engine_speeds import EngineRequest
from edgedecode.engines.selection import known_choice
from edgedecode.pack.hub import BUNDLED_PACK, find_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import shown

__all__ = ["AutoChoice", "explain"]


@dataclass(frozen=True, slots=True)
class AutoChoice:
    """The pack's name, the engine (empty: none can run it), and the reason in one line."""

    pack: str
    engine: str
    reason: str

    @property
    def line(self) -> str:
        return shown(f"--runtime auto, pack {self.pack}: {self.engine or 'no engine'} ({self.reason})")

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def explain(pack: str | None, *, measure: bool) -> AutoChoice | None:
    """Say what auto takes for a pack (None: the bundled one); None where there is no bundled one.

    Raises ManifestError for what is no pack.
    """
    if pack is None and not Path(BUNDLED_PACK).is_dir():
        return None
    root = find_pack(pack)
    manifest = Manifest.load(root)
    choice = known_choice(manifest, root, EngineRequest(), measure=measure)
    return AutoChoice(manifest.name, choice.names[0] if choice.names else "", choice.reason)
