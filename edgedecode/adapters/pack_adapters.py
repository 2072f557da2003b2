"""The adapters that a pack lists, given to its target when they are first asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from edgedecode.decoding.model import AdapterFileModel, AdapterModel, AdapterUse, LanguageModel
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.pack.manifest import Manifest

from .peft_folder import read_peft_adapter

__all__ = ["ActiveAdapter", "PackAdapters"]


@dataclass(frozen=True, slots=True)
class ActiveAdapter:
    """An adapter that a conversation uses. invocation: the tokens from which on it is on; empty: everywhere."""

    use: AdapterUse
    invocation: tuple[int, ...] = ()


class PackAdapters:
    """A pack's adapters by name. What was loaded stays with the target until that is closed."""

    def __init__(self, manifest: Manifest, root: Path, *, target: LanguageModel, runtime: str) -> None:
        self._manifest, self._root = manifest, root
        self._target, self._runtime = target, runtime
        self._held: dict[str, ActiveAdapter] = {}

    @overload
    def use(self, name: str, *, scale: float = 1.0) -> ActiveAdapter: ...
    @overload
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None: ...
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None:
        """Return what passes of the target name to be read with the adapter, which is loaded at the first call.

        None: none. Raises ManifestError for a name that the pack has not or a damaged file, CapabilityError where the
        engine or the graph that is open takes no such adapter, BudgetExceeded.
        """
        if name is None:
            return None
        if name not in self._held:
            self._held[name] = self._load(name)
        held = self._held[name]
        return replace(held, use=replace(held.use, scale=scale))

    def _load(self, name: str) -> ActiveAdapter:
        entry = self._manifest.located_adapter(name)
        if entry.role != "target":
            raise CapabilityError(f"the adapter {name!r} is for the {entry.role}: only those of the target are applied")
        file, config = self._manifest.adapters[name].file, self._manifest.adapters[name].config
        digest = self._add_matrices(name, file=file, config=config) if config else self._add_file(name, file)
        return ActiveAdapter(AdapterUse(name, digest), entry.invocation)

    def _add_file(self, name: str, file: str) -> str:
        if not isinstance(self._target, AdapterFileModel):
            raise CapabilityError(
                f"the adapter {name!r} is a GGUF file, which the engine {self._runtime} does not take: "
                f"use --runtime llama"
            )
        digest = self._digest(file)
        self._target.add_adapter_file(digest, self._root / self._manifest.located_adapter(name).file)
        return digest

    def _add_matrices(self, name: str, *, file: str, config: str) -> str:
        if not isinstance(self._target, AdapterModel) or not self._target.card.lora_rank:
            raise CapabilityError(
                f"the model is open without adapters, so {name!r} cannot be applied: begin with --adapter {name}, in "
                f"Python load the pack with adapters=True; it must have been exported with --graphs base,lora"
            )
        found = read_peft_adapter(self._root / config, self._root / file)
        if found.invocation != self._manifest.adapters[name].invocation:
            raise ManifestError(f"the manifest and {config} differ in the tokens that activate {name!r}: add it again")
        digest = hashlib.sha256(f"{self._digest(config)} {self._digest(file)}".encode()).hexdigest()
        self._target.add_adapter(digest, found.matrices())
        return digest

    def _digest(self, listed: str) -> str:
        return (self._manifest.outside.get(listed) or self._manifest.files[listed]).sha256
