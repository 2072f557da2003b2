"""A pair's loaded draft model, or several where sessions asked for heads that one of them has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedecode.decoding.model import HeadedModel, LanguageModel
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.pack.manifest import ModelEntry

__all__ = ["DraftModels", "default_heads"]


class DraftModels:
    """Loads through `load`, which takes what `Runtime.open` calls needs; None: the pack has no draft model.

    likely: the heads that sessions will ask for: where an engine gives them beside the whole one, the first model
    loaded has them, whoever asks first, and no second one is needed.
    """

    def __init__(self, load: Callable[[Sequence[str]], LanguageModel] | None, *, likely: Sequence[str] = ()) -> None:
        self._load = load
        self._likely = tuple(likely)
        self._loaded: list[LanguageModel] = []

    @property
    def loaded(self) -> tuple[LanguageModel, ...]:
        """The copies in memory."""
        return tuple(self._loaded)

    def offering(self, needs: Sequence[str] = ()) -> LanguageModel | None:
        """Return the draft model with such heads, loaded at its first use; None when the pack has no draft model.

        One that offers more serves as well. Raises CapabilityError where the pack has none like it, or BudgetExceeded.
        """
        if self._load is None:
            return None
        if (known := self._known(needs)) is not None:
            return known
        self._loaded.append((None if needs else self._likely_one()) or self._load(needs))
        return self._loaded[-1]

    def needs_another(self, needs: Sequence[str]) -> bool:
        """Tell whether `offering` would load a second copy."""
        return bool(self._loaded) and self._known(needs) is None

    def can_offer(self, needs: Sequence[str]) -> bool:
        """Tell whether there is a draft model with such heads; it is loaded."""
        try:
            return self.offering(needs) is not None
        except (BudgetExceeded, CapabilityError):
            return False

    def keep(self, count: int) -> None:
        """Close what was loaded after the first `count` models."""
        while len(self._loaded) > count:
            self._loaded.pop().close()

    def close(self) -> None:
        for model in self._loaded:
            model.close()

    def _likely_one(self) -> LanguageModel | None:
        """Load the first model with the likely heads; None where it lacks the whole one, or cannot be had."""
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
    """Return the smaller heads that sessions draft with by default: a trimmed one recommended on this engine.

    A drafter and a need are named alike.
    """
    trim = None if entry is None else entry.trim
    return ("trim",) if trim is not None and trim.recommended and trim.runtime in ("", runtime) else ()


def _offers(model: LanguageModel, needs: Sequence[str]) -> bool:
    """Tell whether a model has these heads; without needs, whether it can say every token."""
    whole = model.card.token_ids is None
    trimmed = not whole or (isinstance(model, HeadedModel) and model.trimmed is not None)
    return trimmed and set(needs) == {"trim"} if needs else whole
