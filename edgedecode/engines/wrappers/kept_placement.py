"""The measured best placement of a pack's models on this device, kept by `bench --place auto` for `--runtime auto`."""

from dataclasses import asdict, dataclass
from pathlib import Path

import edgedecode
from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.pack.integrity import pack_digest
from edgedecode.pack.manifest import Manifest

from ..engine_factory import ProvidersFactory, RuntimeFactory
from ..hardware import cores, processor_facts
from ..interface import Runtime
from ..registry import RUNTIMES, find_factory, find_runtime, installed
from ..selection import EngineRequest, engine_version
from .placed import Place, place_draft


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the two models run. draft None: next to the target."""

    target: Place
    draft: Place | None = None

    def engine(self) -> Runtime:
        """Return the engine that opens the models there. Raises as `place_draft`."""
        return place_draft(find_runtime(self.target.runtime), self.draft)

    def refusal(self, manifest: Manifest, root: Path) -> str:
        """Return why an engine would refuse its model, as far as known without opening it; empty: no reason known."""
        for role in manifest.models:
            place = self.draft if role == "draft" and self.draft is not None else self.target
            factory: object = find_factory(place.runtime)
            if isinstance(factory, RuntimeFactory):
                entry = manifest.located(role)
                if found := factory.refusal(entry, root, name=role, provider=place.provider, needs=()):
                    return found.reason
        return ""

    def __str__(self) -> str:
        return f"target on {self.target}, draft on {self.draft or self.target}"


def keep_placement(manifest: Manifest, request: EngineRequest, placement: Placement) -> Path | None:
    """Keep the best placement of a pack for requests like this one; None: there is no cache folder."""
    path = _path(manifest, request)
    if path is not None:
        keep_json(path, asdict(placement))
    return path


def kept_placement(manifest: Manifest, request: EngineRequest) -> Placement | None:
    """Return the kept placement; None if none was measured with these engines and options."""
    folder = cache_folder("engines")
    if folder is None or not any(folder.glob("placement-*.json")):  # its name would ask every engine for its version
        return None
    path = _path(manifest, request)
    try:
        return None if path is None else kept_json(path, Placement)
    except (OSError, ValueError):
        return None


def _path(manifest: Manifest, request: EngineRequest) -> Path | None:
    """Return the cache file, by pack, versions of the engines and of their providers' packages, threads and KV type."""
    folder = cache_folder("engines")
    if folder is None:
        return None
    versions: list[str] = []
    for name in installed(RUNTIMES):
        if (version := engine_version(name)) is not None:
            factory: object = find_factory(name)
            plugins = factory.provider_versions() if isinstance(factory, ProvidersFactory) else {}
            versions += [f"{name} {version}", *(f"{name}:{plugin} {found}" for plugin, found in plugins.items())]
    settings = repr(request.threads), repr(request.kv_type), str(cores()), *processor_facts()
    facts = facts_key(edgedecode.__version__, pack_digest(manifest), *sorted(versions), *settings)
    return folder / f"placement-{facts}.json"
