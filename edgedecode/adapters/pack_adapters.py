"""Loads a pack's adapters into its models on demand."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, overload
from weakref import WeakSet

import numpy as np

from edgedecode.decoding.model import AdapterFileModel, AdapterModel, AdapterUse, LanguageModel
from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, ManifestError
from edgedecode.fair_lock import FairLock
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.integrity import check_unchanged
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening

_LEAST_USED = -(1 << 29)
"""Base of the leases' priorities: each use of an adapter gets a higher one, all below 0."""


_Key: TypeAlias = "tuple[str, float]"
"""An adapter's name and scale."""


@dataclass(frozen=True, slots=True)
class ActiveAdapter:
    """An adapter that a conversation uses. invocation: the tokens that activate it; empty: it is always active."""

    use: AdapterUse
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Loaded:
    adapter: ActiveAdapter
    leases: Sequence[Lease]


class AdapterChoice:
    """The adapters that one conversation holds: the chosen one, and that of an unfinished answer."""

    def __init__(self, adapters: "PackAdapters") -> None:
        self._adapters = adapters
        self._held: Mapping[_Key, object] = {}
        """By name and scale: what keeps the model's memory for that scale allocated. Replaced, never changed."""

    def choose(self, name: str | None, *, scale: float = 1.0, more: bool = False) -> ActiveAdapter | None:
        """Load and hold an adapter. The previous ones are released first, so that they can be evicted, unless `more`.

        Raises as `PackAdapters.use`; the previous adapters are then held again.
        """
        before = frozenset(self._held)
        if not more:
            self.release()
        try:
            chosen = self._adapters.use(name, scale=scale)
            self.keep(chosen, more=before if more else ())
        except BaseException:
            with suppress(EdgeDecodeError):  # another thread may have taken their memory; the next answer tries again
                self.keep(more=before)
            raise
        return chosen

    def keep(self, *adapters: ActiveAdapter | None, more: Collection[_Key] = ()) -> None:
        """Hold only these adapters, and load evicted ones again. Raises as `PackAdapters.use`."""
        keys = {*more, *_keys(adapters)}
        for key in keys - self._held.keys():
            before = self._held
            self._held = {**before, key: None}  # first, so that it is not evicted for what its scale needs
            try:
                self._held = {**before, key: self._adapters.hold(*key)}
            except BaseException:
                self._keep_only(before.keys())
                raise
        self._keep_only(keys)

    def narrow(self, *adapters: ActiveAdapter | None) -> None:
        """Release every adapter but these, which are not loaded if they were released before."""
        self._keep_only(_keys(adapters))

    def release(self) -> None:
        """Hold no adapter. Idempotent. A finalizer may call it, in any thread and outside the turn."""
        self._keep_only(())

    def holds(self, name: str, *, scale: float | None = None) -> bool:
        """Return whether it holds an adapter, at any scale or at this one."""
        return any(key[0] == name and scale in (None, key[1]) for key in self._held)

    def _keep_only(self, keys: Collection[_Key]) -> None:
        before = self._held
        self._held = {key: kept for key, kept in before.items() if key in keys}
        for name, scale in before.keys() - self._held.keys():
            self._adapters.offer(name, scale)


def _keys(adapters: Iterable[ActiveAdapter | None]) -> set[_Key]:
    return {(each.use.name, each.use.scale) for each in adapters if each is not None}


class PackAdapters:
    """A pack's adapters for one of its models, loaded on demand.

    An adapter that no conversation holds stays loaded until its memory is needed; the least recently used one is
    evicted first. All methods must be called in the pair's turn.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: Path,
        *,
        model: LanguageModel,
        budget: Budget,
        turn: FairLock,
        role: str = "target",
    ) -> None:
        self._manifest, self._root = manifest, root
        self._model, self._role = model, role
        self._budget, self._turn = budget, turn
        self._loaded: dict[str, _Loaded] = {}
        self._choices: WeakSet[AdapterChoice] = WeakSet()
        self._uses = 0

    def of_draft(self, model: LanguageModel) -> "PackAdapters":
        """Return the pack's adapters for `model`, a draft model."""
        return PackAdapters(self._manifest, self._root, model=model, budget=self._budget, turn=self._turn, role="draft")

    def choice(self) -> AdapterChoice:
        """Return a conversation's choice, at first of no adapter."""
        made = AdapterChoice(self)
        self._choices.add(made)
        return made

    @overload
    def use(self, name: str, *, scale: float = 1.0) -> ActiveAdapter: ...
    @overload
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None: ...
    def use(self, name: str | None, *, scale: float = 1.0) -> ActiveAdapter | None:
        """Load an adapter if necessary, and return the form of it that the model's passes take. name: None for none.

        The caller must hold it in the same turn, or it may be evicted. Raises ManifestError for an unknown name,
        or a file that is damaged or has changed, CapabilityError if the engine or the open graph does not take the
        adapter, InputError for a scale that is not a number, BudgetExceeded.
        """
        if name is None:
            return None
        _check_scale(scale)
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

    def hold(self, name: str, scale: float) -> object:
        """Load an adapter that a conversation holds, if necessary, so that it is not evicted.

        Return what keeps the model's memory for this scale allocated.
        """
        if name not in self._loaded:
            self.use(name)
        self._mark(name)
        assert isinstance(self._model, AdapterModel)
        return self._model.prepare_adapter(replace(self._loaded[name].adapter.use, scale=scale))

    def offer(self, name: str, scale: float) -> None:
        """Let the budget evict an adapter that a conversation released, unless another one holds it.

        May be called outside the turn: who holds it is then checked before it is evicted.
        """
        if self._turn.held:
            self._mark(name)
            if name in self._loaded and not self._is_held(name, scale=scale):
                assert isinstance(self._model, AdapterModel)
                self._model.remove_adapter(self._loaded[name].adapter.use.digest, scale=scale)
            return
        for lease in self._leases(name):
            lease.reclaim = lambda: self._evict(name)

    def _mark(self, name: str, *, priority: int | None = None) -> None:
        """Let the budget evict an adapter if no conversation holds it. One of higher priority is evicted later."""
        held = self._is_held(name)
        for lease in self._leases(name):
            lease.reclaim = None if held else lambda: self._evict(name)
            lease.priority = lease.priority if priority is None else priority

    def _evict(self, name: str) -> None:
        """Remove an unused adapter from the model, unless a pass of another thread may be running."""
        if not self._turn.held or name not in self._loaded:
            return
        if self._is_held(name):
            self._mark(name)
            return
        assert isinstance(self._model, AdapterModel)
        self._model.remove_adapter(self._loaded.pop(name).adapter.use.digest)

    def _is_held(self, name: str, *, scale: float | None = None) -> bool:
        return any(choice.holds(name, scale=scale) for choice in self._choices)

    def _leases(self, name: str) -> Sequence[Lease]:
        loaded = self._loaded.get(name)
        return () if loaded is None else loaded.leases

    def _load(self, name: str) -> ActiveAdapter:
        entry = self._manifest.located_adapter(name)
        if entry.role != self._role:
            raise CapabilityError(
                f"the adapter {name!r} is for the {entry.role} and cannot be used with the {self._role}"
            )
        file, config = self._manifest.adapters[name].file, self._manifest.adapters[name].config
        with opening(self._root, missing_seconds=0):  # answers wait meanwhile
            digest = self._add_matrices(name, file=file, config=config) if config else self._add_file(name, file)
        return ActiveAdapter(AdapterUse(name, digest), entry.invocation)

    def _add_file(self, name: str, file: str) -> str:
        path = self._root / self._manifest.located_adapter(name).file
        if isinstance(self._model, AdapterFileModel):
            digest = self._digest_of(name, file)
            self._model.add_adapter_file(digest, path)
            return digest
        model = self._taking(name)
        from .gguf_adapter import read_gguf_matrices

        found = read_gguf_matrices(path, self._manifest.models[self._role], name=self._role)
        digest = self._digest_of(name, file)
        model.add_adapter(digest, found.matrices())
        return digest

    def _taking(self, name: str) -> AdapterModel:
        """Return the model. Raises CapabilityError if its graph takes no adapters."""
        if not isinstance(self._model, AdapterModel) or not self._model.card.lora_rank:
            if self._role == "draft":
                raise CapabilityError("its graph takes no adapters (`export --graphs base,lora` adds one that does)")
            raise CapabilityError(
                f"the model was opened without adapters, so {name!r} cannot be used: start with --adapter {name}, or "
                f"in Python load the pack with adapters=True; it must have been exported with --graphs base,lora"
            )
        return self._model

    def _add_matrices(self, name: str, *, file: str, config: str) -> str:
        model = self._taking(name)
        from .peft_folder import read_peft_adapter

        found = read_peft_adapter(self._root / config, self._root / file)
        if found.invocation != self._manifest.adapters[name].invocation:
            raise ManifestError(
                f"the manifest and {config} differ in the tokens that activate {name!r}: add the adapter again"
            )
        digest = self._digest_of(name, config, file)
        model.add_adapter(digest, found.matrices())
        return digest

    def _digest_of(self, name: str, *listed: str) -> str:
        """Digest an adapter's name and files, so that two names of the same files are loaded and evicted separately.

        Raises ManifestError if the files are no longer those of the manifest: KV caches of the digest would then be
        used with other matrices.
        """
        try:
            check_unchanged(self._manifest, self._root, listed)
        except CapabilityError:
            raise ManifestError(
                f"the files of the adapter {name!r} were changed since the pack was opened: open it again"
            ) from None
        digests = ((self._manifest.outside.get(each) or self._manifest.files[each]).sha256 for each in listed)
        return hashlib.sha256(" ".join((name, *digests)).encode()).hexdigest()


def _check_scale(scale: float) -> None:
    """Raise InputError unless an engine, which takes it as float32, can multiply by it."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(scale)):
            raise InputError(f"an adapter's scale must be a finite number of 32 bits, not {scale}")
