"""A pair's loaded draft models: several where sessions need heads that one copy lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedecode.adapters.pack_adapters import PackAdapters
from edgedecode.decoding.model import HeadedModel, LanguageModel
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.pack.manifest import ModelEntry


class DraftModels:
    """Loads draft models on demand through `load`, which takes the needs of `Runtime.open`.

    load: None if the pack has no draft model. likely: the heads that sessions will probably ask for. If the engine can
    offer them next to the full head, the first model is loaded with both, so that no second copy is needed. adapters:
    returns the pack's adapters for a loaded model.
    """

    def __init__(
        self,
        load: Callable[[Sequence[str]], LanguageModel] | None,
        *,
        likely: Sequence[str] = (),
        adapters: Callable[[LanguageModel], PackAdapters] | None = None,
    ) -> None:
        self._load = load
        self._likely = tuple(likely)
        self._make_adapters = adapters
        self._loaded: list[LanguageModel] = []
        self._adapters: dict[int, PackAdapters] = {}
        """By id of the loaded model."""

    @property
    def loaded(self) -> tuple[LanguageModel, ...]:
        """The copies in memory, in the order they were loaded."""
        return tuple(self._loaded)

    def offering(self, needs: Sequence[str] = ()) -> LanguageModel | None:
        """Return a draft model with these heads or more, loaded at its first use; None if the pack has no draft model.

        Raises CapabilityError if the pack has no such heads, or BudgetExceeded.
        """
        if self._load is None:
            return None
        if (known := self._known(needs)) is not None:
            return known
        self._loaded.append((None if needs else self._load_likely()) or self._load(needs))
        return self._loaded[-1]

    def adapters(self, model: LanguageModel) -> PackAdapters:
        """Return the pack's adapters for one of the loaded models."""
        if id(model) not in self._adapters:
            assert self._make_adapters is not None
            assert any(model is loaded for loaded in self._loaded)
            self._adapters[id(model)] = self._make_adapters(model)
        return self._adapters[id(model)]

    def needs_another(self, needs: Sequence[str]) -> bool:
        """Return whether `offering` would load a second copy."""
        return bool(self._loaded) and self._known(needs) is None

    def can_offer(self, needs: Sequence[str]) -> bool:
        """Return whether there is a draft model with these heads, and load it."""
        try:
            return self.offering(needs) is not None
        except (BudgetExceeded, CapabilityError):
            return False

    def keep(self, count: int) -> None:
        """Close all but the first `count` models."""
        while len(self._loaded) > count:
            model = self._loaded.pop()
            self._adapters.pop(id(model), None)
            model.close()

    def close(self) -> None:
        for model in self._loaded:
            model.close()

    def _load_likely(self) -> LanguageModel | None:
        """Load the first model with the likely heads; None if it then lacks the full head, or cannot be loaded."""
        if self._loaded or not self._likely or self._load is None:
            return None
        try:
            model = self._load(self._likely)
        except (BudgetExceeded, CapabilityError):
            return None
        if _offers(model, ()):
            return model
        model.close()
        return None

    def _known(self, needs: Sequence[str]) -> LanguageModel | None:
        return next((model for model in self._loaded if _offers(model, needs)), None)


def default_heads(entry: ModelEntry | None, *, runtime: str) -> tuple[str, ...]:
    """Return the smaller heads that sessions draft with by default: a trimmed head recommended on this engine.

    The names are those of the drafters, and of the needs in `Runtime.open`.
    """
    trim = None if entry is None else entry.trim
    return ("trim",) if trim is not None and trim.recommended and trim.runtime in ("", runtime) else ()


def _offers(model: LanguageModel, needs: Sequence[str]) -> bool:
    """Return whether a model has these heads; without needs, whether its head covers the full vocabulary."""
    full = model.card.token_ids is None
    trimmed = not full or (isinstance(model, HeadedModel) and model.trimmed is not None)
    return trimmed and set(needs) == {"trim"} if needs else full
