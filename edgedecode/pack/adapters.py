"""The adapters that a pack lists, given to its target when they are first asked for."""

from __future__ import annotations

from pathlib import Path

from edgedecode.decoding.model import AdapterFileModel, AdapterUse, LanguageModel
from edgedecode.errors import CapabilityError

from .manifest import Manifest

__all__ = ["PackAdapters"]


class PackAdapters:
    """A pack's adapters by name. What was loaded stays with the target until that is closed."""

    def __init__(self, manifest: Manifest, root: Path, *, target: LanguageModel, runtime: str) -> None:
        self._manifest, self._root = manifest, root
        self._target, self._runtime = target, runtime
        self._held: dict[str, AdapterUse] = {}

    def use(self, name: str) -> AdapterUse:
        """Return what passes of the target name to be read with the adapter, which is loaded at the first call.

        Raises ManifestError for a name that the pack has not or a damaged file, CapabilityError where the engine or the
        way the adapter works does not allow it, BudgetExceeded.
        """
        if name not in self._held:
            self._held[name] = self._load(name)
        return self._held[name]

    def _load(self, name: str) -> AdapterUse:
        entry = self._manifest.located_adapter(name)
        if entry.role != "target":
            raise CapabilityError(f"the adapter {name!r} is for the {entry.role}: only those of the target are applied")
        if entry.invocation:  # applied everywhere it would be another adapter
            raise CapabilityError(
                f"the adapter {name!r} is activated by tokens of the prompt, which is not supported yet: "
                f"give one that holds for every token"
            )
        if not isinstance(self._target, AdapterFileModel):
            raise CapabilityError(
                f"the adapter {name!r} is a GGUF file, which the engine {self._runtime} does not take: "
                f"use --runtime llama"
            )
        listed = self._manifest.adapters[name].file
        outside = self._manifest.outside.get(listed)
        digest = (outside or self._manifest.files[listed]).sha256
        self._target.add_adapter_file(digest, self._root / entry.file)
        return AdapterUse(name, digest)
