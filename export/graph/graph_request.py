"""Which graphs are built over a model's weights file, and their context length."""

from dataclasses import dataclass

from edgedecode.errors import ExportError, InputError
from edgedecode.gguf.architectures import ALL

from .model_shape import Shape

GRAPHS = ("base", "lora", "kv8")
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")
"""Modules an adapter may change, by their names in PEFT's `target_modules`. No model has all of them."""
DEFAULT_RANK = 16
LEAST_CONTEXT = 64
"""Minimum number of positions that the checks need."""
DEFAULT_CONTEXT = 32768
"""Rotary tables cover every position: at 131,072 they would be larger than some small models' weights."""


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """The graphs to build, and the rank of the one for adapters."""

    names: tuple[str, ...] = ("base",)
    lora_rank: int = DEFAULT_RANK

    @classmethod
    def of(cls, graphs: str, *, lora_rank: int | None = None) -> "GraphRequest":
        """Parse a comma-separated list. The base graph is always included. Raises InputError."""
        asked = {name.strip() for name in graphs.split(",") if name.strip()}
        if unknown := sorted(asked - {*GRAPHS}):
            raise InputError(f"no graph is called {unknown[0]!r}: --graphs takes {', '.join(GRAPHS)}")
        if "lora" not in asked and lora_rank is not None:
            raise InputError("--lora-rank needs a lora graph: add lora to --graphs")
        if lora_rank is not None and lora_rank < 1:
            raise InputError(f"--lora-rank {lora_rank}: a lora graph needs 1 or more")
        names = tuple(name for name in GRAPHS if name == "base" or name in asked)
        return cls(names, lora_rank=lora_rank or DEFAULT_RANK)


BASE_ONLY = GraphRequest()


@dataclass(frozen=True, slots=True)
class Span:
    """The requested context length. `context` None: the model's own, up to DEFAULT_CONTEXT.

    That of a long-rope model ends where it would change its factors.
    """

    context: int | None = None

    def context_of(self, shape: Shape) -> int:
        """Return the context length that a model of this shape is exported with."""
        return min(self._possible(shape), self.context or DEFAULT_CONTEXT)

    def check(self, shape: Shape, *, name: str) -> None:
        """Raise ExportError if the model does not support the request."""
        if self.context is not None and self.context > self._possible(shape):
            raise ExportError(
                f"{name} supports {self._possible(shape)} positions, not {self.context}: use a shorter context"
            )

    def notes_on(self, shape: Shape) -> tuple[str, ...]:
        """Return notes about the context for the pack's users."""
        context, notes = self.context_of(shape), []
        if context < self._possible(shape):
            why = "as requested" if self.context else "export with --context for more"
            notes.append(f"the context is limited to {context} of {self._possible(shape)} tokens: {why}")
        if self._switches(shape):
            notes.append(
                f"the context ends at {shape.short_context} of {shape.context} tokens, where the model would "
                f"{_CHANGES[ALL[shape.architecture].tempered]}"
            )
        return tuple(notes)

    def _switches(self, shape: Shape) -> bool:
        return 0 < shape.short_context < shape.context

    def _possible(self, shape: Shape) -> int:
        return shape.short_context if self._switches(shape) else shape.context


_CHANGES = {
    False: "change its rotary factors and repeat the prefill",
    True: "begin to scale its queries by their positions: import a GGUF file for more",
}
WHOLE = Span()
"""The default context."""
