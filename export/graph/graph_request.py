"""Which graphs are built over a model's weights file, and their context length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgedecode.adapters.adapter_parts import Projection
from edgedecode.errors import ExportError, InputError
from edgedecode.gguf.architectures import ARCHITECTURES

from .model_shape import Shape

GRAPHS = ("base", "hidden", "lora", "kv8")
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")
"""Modules an adapter may change, by their names in PEFT's `target_modules`. No model has all of them."""
DEFAULT_RANK = 16
_PLAIN_MODULES = LORA_MODULES[:7]
_FUSED_MODULES = ("o_proj", "down_proj", "qkv_proj", "gate_up_proj")
LEAST_CONTEXT = 64
"""Minimum number of positions that the checks need."""
DEFAULT_CONTEXT = 32768
"""Rotary tables cover every position: at 131,072 they would be larger than some small models' weights."""


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """The graphs to build, and the rank and modules of the one for adapters."""

    names: tuple[str, ...] = ("base",)
    lora_rank: int = DEFAULT_RANK
    lora_modules: tuple[str, ...] = ()
    """Projections that adapters may change, all of which the model must have; empty: all that it has."""

    @classmethod
    def of(cls, graphs: str, *, lora_rank: int | None = None, lora_modules: str = "") -> GraphRequest:
        """Parse comma-separated lists. The base graph is always included. Raises InputError."""
        asked, modules = _names(graphs), _names(lora_modules)
        if unknown := [name for name in asked if name not in GRAPHS]:
            raise InputError(f"no graph is called {unknown[0]!r}: --graphs takes {', '.join(GRAPHS)}")
        if unknown := [name for name in modules if name not in LORA_MODULES]:
            raise InputError(f"no projection is called {unknown[0]!r}: --lora-modules takes {', '.join(LORA_MODULES)}")
        if "lora" not in asked and (lora_rank is not None or modules):
            raise InputError("--lora-rank and --lora-modules need a lora graph: add lora to --graphs")
        if lora_rank is not None and lora_rank < 1:
            raise InputError(f"--lora-rank {lora_rank}: a lora graph needs 1 or more")
        names = [name for name in GRAPHS if name == "base" or name in asked]
        return cls(tuple(names), lora_rank=lora_rank or DEFAULT_RANK, lora_modules=tuple(modules))

    def with_adapters(self, *, rank: int) -> GraphRequest:
        """Return the request with a lora graph, for adapters of at least this rank."""
        names = tuple(name for name in GRAPHS if name in (*self.names, "lora"))
        return replace(self, names=names, lora_rank=max(self.lora_rank, rank))

    def check(self, architecture: str, *, name: str) -> None:
        """Raise InputError if a requested projection does not exist in this architecture."""
        available = adaptable_modules(architecture)
        if missing := [module for module in self.lora_modules if module not in available]:
            known = ", ".join(available)
            raise InputError(f"{name} has no projection {missing[0]}: --lora-modules may name {known}")


BASE_ONLY = GraphRequest()


def adaptable_modules(architecture: str) -> tuple[str, ...]:
    """Return the projections of a model's layers, by their names in PEFT's `target_modules`."""
    return _FUSED_MODULES if ARCHITECTURES[architecture].fused else _PLAIN_MODULES


def adapted_products(shape: Shape) -> Iterator[Projection]:
    """Yield every layer's projections, which adapters may change."""
    query, cache = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {"q_proj": (shape.hidden, query), "k_proj": (shape.hidden, cache), "v_proj": (shape.hidden, cache)}
    sizes |= {"o_proj": (query, shape.hidden), "qkv_proj": (shape.hidden, query + 2 * cache)}
    sizes |= {"gate_proj": (shape.hidden, shape.mlp), "up_proj": (shape.hidden, shape.mlp)}
    sizes |= {"down_proj": (shape.mlp, shape.hidden), "gate_up_proj": (shape.hidden, 2 * shape.mlp)}
    for layer in range(shape.layers):
        for module in adaptable_modules(shape.architecture):
            yield Projection(layer, module, *sizes[module])


def _names(text: str) -> Sequence[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


@dataclass(frozen=True, slots=True)
class Span:
    """The requested context length. `context` None: the model's own, up to DEFAULT_CONTEXT.

    long_rope: whether a long-rope model uses its long factors, which give it its full context.
    """

    context: int | None = None
    long_rope: bool = False

    def context_of(self, shape: Shape) -> int:
        """Return the context length that a model of this shape is exported with."""
        return min(self._possible(shape), self.context or DEFAULT_CONTEXT)

    def check(self, shape: Shape, *, name: str) -> None:
        """Raise ExportError if the model does not support the request."""
        if self.long_rope and not self._switches(shape):
            raise ExportError(f"{name} has no long rope: leave out --rope long")
        if self.context is not None and self.context > self._possible(shape):
            raise ExportError(
                f"{name} supports {self._possible(shape)} positions, not {self.context}: use a shorter context"
            )
        if self.long_rope and self.context_of(shape) <= shape.short_context:
            raise ExportError(
                f"{name} uses its short factors up to {shape.short_context} positions: leave out --rope long for a "
                f"context of {self.context_of(shape)}"
            )

    def notes_on(self, shape: Shape) -> tuple[str, ...]:
        """Return notes about the context for the pack's users."""
        context, notes = self.context_of(shape), []
        if context < self._possible(shape):
            why = "as requested" if self.context else "export with --context for more"
            notes.append(f"the context is limited to {context} of {self._possible(shape)} tokens: {why}")
        if self._switches(shape) and self.long_rope:
            notes.append(
                f"long-rope factors at every length: results for texts of up to {shape.short_context} tokens differ "
                f"from the original model's, which uses its short factors there"
            )
        elif self._switches(shape):
            notes.append(
                f"the context ends at {shape.short_context} of {shape.context} tokens, where the model would change "
                f"its rotary factors and repeat the prefill: export with --rope long for longer texts"
            )
        return tuple(notes)

    def _switches(self, shape: Shape) -> bool:
        return 0 < shape.short_context < shape.context

    def _possible(self, shape: Shape) -> int:
        return shape.short_context if self._switches(shape) and not self.long_rope else shape.context


WHOLE = Span()
"""The default context."""
