"""A pair's draft models, the full one and the trimmed one: which is preferred, and which are loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ADAPTERS
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.pack.entries import DRAFT, HEAD, TRIM
from edgedecode.pack.manifest import Manifest

if TYPE_CHECKING:
    from edgedecode.adapters.pack_adapters import PackAdapters

DRAFT_ROLES = (DRAFT, TRIM, HEAD)
FULL = "model"
"""The drafter that runs the full draft model."""


class DraftModels:
    """Loads draft models on demand through `load`, which takes a role (DRAFT, TRIM, HEAD) and needs of `Runtime.open`.

    load: returns None if the pack has no such model. adapters: returns the pack's adapters for a loaded model.
    """

    def __init__(
        self,
        load: Callable[[str, Sequence[str]], LanguageModel | None],
        *,
        adapters: Callable[[LanguageModel], PackAdapters] | None = None,
    ) -> None:
        self._load = load
        self._make_adapters = adapters
        self._loaded: dict[tuple[str, tuple[str, ...]], LanguageModel] = {}
        self._held: list[LanguageModel] = []
        """Models that are used without a session."""
        self._adapters: dict[int, PackAdapters] = {}
        """By id of the loaded model."""

    @property
    def loaded(self) -> tuple[LanguageModel, ...]:
        """The models in memory, in the order they were loaded."""
        return tuple(self._loaded.values())

    def hold(self, role: str = DRAFT, *, needs: Sequence[str] = ()) -> LanguageModel | None:
        """Return a draft model for use without a session, loaded at its first use; None if the pack has none.

        Raises CapabilityError if there is no such model, or BudgetExceeded.
        """
        model = self._model(role, needs)
        if model is not None and not any(model is held for held in self._held):
            self._held.append(model)
        return model

    def for_session(self, role: str, *, used: Collection[LanguageModel]) -> LanguageModel | None:
        """Return a draft model like `hold`; before it is loaded, those that are neither held nor `used` are closed."""
        if (role, ()) not in self._loaded:
            self.keep(self._kept(used))
        return self._model(role, ())

    def unused(self, used: Collection[LanguageModel]) -> tuple[str, ...]:
        """Return the roles of loaded models that `for_session` would close for another."""
        kept = self._kept(used)
        return tuple(role for (role, _), model in self._loaded.items() if not any(model is each for each in kept))

    def _kept(self, used: Collection[LanguageModel]) -> list[LanguageModel]:
        return [model for model in self.loaded if any(model is other for other in (*used, *self._held))]

    def can_load(self, role: str) -> bool:
        """Return whether there is such a draft model, and load it for use without a session."""
        try:
            return self.hold(role) is not None
        except (BudgetExceeded, CapabilityError):
            return False

    def adapters(self, model: LanguageModel) -> PackAdapters:
        """Return the pack's adapters for one of the loaded models."""
        if id(model) not in self._adapters:
            assert self._make_adapters is not None
            assert any(model is loaded for loaded in self.loaded)
            self._adapters[id(model)] = self._make_adapters(model)
        return self._adapters[id(model)]

    def keep(self, models: Collection[LanguageModel]) -> None:
        """Close all other models."""
        for key, model in list(self._loaded.items()):
            if not any(model is kept for kept in models):
                del self._loaded[key]
                self._adapters.pop(id(model), None)
                self._held = [held for held in self._held if held is not model]
                model.close()

    def close(self) -> None:
        self.keep(())

    def _model(self, role: str, needs: Sequence[str]) -> LanguageModel | None:
        key = role, tuple(needs)
        if key not in self._loaded and (model := self._load(role, needs)) is not None:
            self._loaded[key] = model
        return self._loaded.get(key)


def role_of(drafter: str) -> str:
    """Return the role of the draft model that a drafter with a model runs."""
    return drafter if drafter in (TRIM, HEAD) else DRAFT


def preferred_drafters(
    manifest: Manifest, *, runtime: str, kv_type: str = "", loading: Sequence[str] = (), heads: bool = False
) -> tuple[str, ...]:
    """Return the drafters with a draft model that sessions may choose by default, the preferred one first.

    runtime: the draft's engine. The trimmed draft comes first where it is faster, and has the KV type asked for if the
    full one has it; it takes no adapters. heads: whether the engine runs heads; one costs less than any draft model.
    """
    if heads and manifest.head is not None:
        return HEAD, *preferred_drafters(manifest, runtime=runtime, kv_type=kv_type, loading=loading)
    draft = manifest.models.get(DRAFT)
    if draft is None:
        return ()
    trimmed = draft.trimmed
    if trimmed is None or trimmed.runtime != runtime or not trimmed.is_faster:
        return (FULL,)
    offered = {graph.kv_type for graph in draft.graphs.values()}
    coarser = kv_type in offered and kv_type != trimmed.graph.kv_type
    return (FULL,) if coarser or (ADAPTERS in loading and manifest.has_draft_adapters) else (TRIM, FULL)
