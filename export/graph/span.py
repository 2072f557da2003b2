"""How many positions an export serves: what the model allows, what was asked for, and where long rope sets an end."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.errors import ExportError

from .architectures import Shape

__all__ = ["DEFAULT_CONTEXT", "LEAST_CONTEXT", "WHOLE", "Span"]

LEAST_CONTEXT = 64
"""The checks' text and branches need so many positions."""
DEFAULT_CONTEXT = 32768
"""Rotary tables cover every position: at 131,072 they would weigh more than some small models themselves."""


@dataclass(frozen=True, slots=True)
class Span:
    """What was asked for. `context` None: the model's own, up to DEFAULT_CONTEXT.

    long_rope: whether a long-rope model gets its long factors, for its whole context.
    """

    context: int | None = None
    long_rope: bool = False

    def context_of(self, shape: Shape) -> int:
        """Return the positions that a model of this shape is exported for."""
        return min(self._possible(shape), self.context or DEFAULT_CONTEXT)

    def check(self, shape: Shape, *, name: str) -> None:
        """Raise ExportError where what was asked for is not to be had of this model."""
        if self.long_rope and not self._switches(shape):
            raise ExportError(f"{name} has no long rope: leave out --rope long")
        if self.context is not None and self.context > self._possible(shape):
            raise ExportError(f"{name} serves {self._possible(shape)} positions, not {self.context}: ask for less")
        if self.long_rope and self.context_of(shape) <= shape.short_context:
            raise ExportError(
                f"{name} uses its short factors up to {shape.short_context} positions: leave out --rope long for a "
                f"context of {self.context_of(shape)}"
            )

    def notes_on(self, shape: Shape) -> tuple[str, ...]:
        """Say what a user must know of it, a sentence each."""
        context, notes = self.context_of(shape), []
        if context < self._possible(shape):
            why = "as asked" if self.context else "export with --context for more"
            notes.append(f"the context is limited to {context} of {self._possible(shape)} tokens: {why}")
        if self._switches(shape) and self.long_rope:
            notes.append(
                f"long-rope factors throughout: texts of up to {shape.short_context} tokens are computed otherwise "
                f"than by the original, which changes its factors there"
            )
        elif self._switches(shape):
            notes.append(
                f"the context ends at {shape.short_context} of {shape.context} tokens, where the model would change "
                f"its rotary factors and read everything again: export with --rope long for longer texts"
            )
        return tuple(notes)

    def _switches(self, shape: Shape) -> bool:
        return 0 < shape.short_context < shape.context

    def _possible(self, shape: Shape) -> int:
        return shape.short_context if self._switches(shape) and not self.long_rope else shape.context


WHOLE = Span()
"""Nothing asked for."""
