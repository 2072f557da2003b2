"""The adapters that a pack lists, given to its models when they are first asked for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from edgedecode.decoding.model import AdapterFileModel, AdapterModel, AdapterUse, LanguageModel
from edgedecode.errors import CapabilityError, EdgeDecodeError, ManifestError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import Manifest
from edgedecode.turns import FairLock

from .adapter_parts import FLOAT_NBYTES
from .peft_folder import read_peft_adapter

__all__ = ["ActiveAdapter", "AdapterChoice", "PackAdapters", "loaded_nbytes"]

_TENSOR_NBYTES = 4096
"""An engine's overhead of a tensor."""
_MOST_TENSORS = 512
"""Tensors that are planned for an adapter whose file is not read."""
_LEAST_USED = -(1 << 29)
"""Priority of the leases of the first adapter used; those used later have higher ones, all below 0."""


@dataclass(frozen=True, slots=True)
class ActiveAdapter:
    """An adapter that a conversation uses. invocation: the tokens from which on it is on; empty: everywhere."""

    use: AdapterUse
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Loaded:
    adapter: ActiveAdapter
    leases: Sequence[Lease]


class AdapterChoice:
    """The adapters that one conversation needs: the chosen one, and that of an answer which has not ended."""

    def __init__(self, adapters: PackAdapters) -> None:
        self._adapters = adapters
        self.names: frozenset[str] = frozenset()

    def choose(self, name: str | None, *, scale: float = 1.0, more: bool = False) -> ActiveAdapter | None:
        """Load an adapter and need it; those needed before may be evicted for it, unless it is one `more`.

        Raises as `PackAdapters.use`, and then what was needed before still is.
        """
        before = self.names
        if not more:
            self.release()
        try:
            chosen = self._adapters.use(name, scale=scale)
        except BaseException:
            with suppress(EdgeDecodeError):  # another thread may have taken their memory: the next answer meets it
                self.keep(more=before)
            raise
        self.keep(chosen, more=before if more else ())
        return chosen

    def keep(self, *adapters: ActiveAdapter | None, more: Collection[str] = ()) -> None:
        """Need these adapters and no others; one that was evicted is loaded again. Raises as `PackAdapters.use`."""
        names = frozenset((*more, *(adapter.use.name for adapter in adapters if adapter is not None)))
        for name in names - self.names:
            self._adapters.count(name, 1)
            self.names |= {name}
        for name in self.names - names:
            self._adapters.count(name, -1)
            self.names -= {name}

    def release(self) -> None:
        """Need none any more. Idempotent."""
        self.keep()


class PackAdapters:
    """A pack's adapters for one of its models, by name, given to the model when they are first asked for.

    An adapter that no conversation has chosen stays with the model until its memory is needed for something else; the
    least recently used one goes first. Asked for again, it is loaded again. Call everything in the pair's turn.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: Path,
        *,
        model: LanguageModel,
        runtime: str,
        budget: Budget,
        turn: FairLock,
        role: str = "target",
    ) -> None:
        self._manifest, self._root = manifest, root
        self._model, self._role, self._runtime = model, role, runtime
        self._budget, self._turn = budget, turn
        self._loaded: dict[str, _Loaded] = {}
        self._users = Counter[str]()
        self._uses = 0

    def of_draft(self, model: LanguageModel) -> PackAdapters:
        """Return the pack's adapters for a copy of the draft model."""
        return PackAdapters(
            self._manifest,
            self._root,
            model=model,
            runtime=self._runtime,
            budget=self._budget,
            turn=self._turn,
            role="draft",
        )

    def choice(self) -> AdapterChoice:
        """Return a conversation's choice, of no adapter yet."""
        return AdapterChoice(self)

    @overload
    def use(self, name: str, *, scale: float = 1.0) -> ActiveAdapter: ...
    @overload
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None: ...
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None:
        """Return what passes of the model name to be read with the adapter, which is loaded unless it is there.

        Choose it in the same turn, or it may be evicted. None: none. Raises ManifestError for a name that the pack has
        not or a damaged file, CapabilityError where the engine or the graph that is open takes no such adapter,
        BudgetExceeded.
        """
        if name is None:
            return None
        if name not in self._loaded:
            before = set(self._budget.leases)
            adapter = self._load(name)
            new = (lease for lease in self._budget.leases if lease not in before)
            leases = tuple(lease for lease in new if lease.name.startswith("adapter:"))
            self._loaded[name] = _Loaded(adapter, leases)
            for lease in leases:
                lease.name = f"adapter:{name}"
        self._uses += 1
        self._mark(name, priority=_LEAST_USED + self._uses)
        adapter = self._loaded[name].adapter
        return replace(adapter, use=replace(adapter.use, scale=scale))

    def count(self, name: str, users: int) -> None:
        """Count conversations that have chosen an adapter, which is loaded then; with none it may be evicted."""
        if name not in self._loaded:
            self.use(name)
        self._users[name] += users
        self._mark(name)

    def _mark(self, name: str, *, priority: int | None = None) -> None:
        """Let the budget evict an adapter, or not; a higher priority is evicted later."""
        for lease in self._loaded[name].leases:
            lease.reclaim = None if self._users[name] else lambda: self._evict(name)
            lease.priority = lease.priority if priority is None else priority

    def _evict(self, name: str) -> None:
        """Take an unused adapter from the model, unless a pass of another thread may be running."""
        if self._turn.held and not self._users[name] and name in self._loaded:
            assert isinstance(self._model, AdapterModel)
            self._model.remove_adapter(self._loaded.pop(name).adapter.use.digest)

    def _load(self, name: str) -> ActiveAdapter:
        entry = self._manifest.located_adapter(name)
        if entry.role != self._role:
            raise CapabilityError(f"the adapter {name!r} is for the {entry.role} and cannot be the {self._role}'s")
        file, config = self._manifest.adapters[name].file, self._manifest.adapters[name].config
        digest = self._add_matrices(name, file=file, config=config) if config else self._add_file(name, file)
        return ActiveAdapter(AdapterUse(name, digest), entry.invocation)

    def _add_file(self, name: str, file: str) -> str:
        if not isinstance(self._model, AdapterFileModel):
            raise CapabilityError(
                f"the adapter {name!r} is a GGUF file, which the engine {self._runtime} does not take: "
                f"use --runtime llama"
            )
        digest = _digest_of(name, self._digest(file))
        self._model.add_adapter_file(digest, self._root / self._manifest.located_adapter(name).file)
        return digest

    def _add_matrices(self, name: str, *, file: str, config: str) -> str:
        if not isinstance(self._model, AdapterModel) or not self._model.card.lora_rank:
            if self._role == "draft":
                raise CapabilityError("its graph takes no adapters (`export --graphs base,lora` makes one that does)")
            raise CapabilityError(
                f"the model is open without adapters, so {name!r} cannot be applied: begin with --adapter {name}, in "
                f"Python load the pack with adapters=True; it must have been exported with --graphs base,lora"
            )
        found = read_peft_adapter(self._root / config, self._root / file)
        if found.invocation != self._manifest.adapters[name].invocation:
            raise ManifestError(f"the manifest and {config} differ in the tokens that activate {name!r}: add it again")
        digest = _digest_of(name, self._digest(config), self._digest(file))
        self._model.add_adapter(digest, found.matrices())
        return digest

    def _digest(self, listed: str) -> str:
        return (self._manifest.outside.get(listed) or self._manifest.files[listed]).sha256


def loaded_nbytes(manifest: Manifest, root: Path, name: str) -> int:
    """Return the most that an engine holds of a loaded adapter of the pack. Raises as `PackAdapters.use`.

    As float32, with an eighth more for the zeros of products that several projections share.
    """
    located, listed = manifest.located_adapter(name), manifest.adapters[name]
    if not listed.config:
        return (root / located.file).stat().st_size + _TENSOR_NBYTES * _MOST_TENSORS
    found = read_peft_adapter(root / listed.config, root / listed.file)
    return FLOAT_NBYTES * found.values * 9 // 8 + _TENSOR_NBYTES * found.tensors


def _digest_of(*parts: str) -> str:
    """Return a digest of an adapter's name and files: two names of the same files are loaded and evicted apart."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()
