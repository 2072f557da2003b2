"""Which graphs a model gets over its one weights file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import InputError

from .architectures import FUSED

__all__ = ["BASE_ONLY", "GRAPHS", "LORA_MODULES", "GraphRequest"]

GRAPHS = ("base", "hidden", "lora", "kv8")
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")
"""What adapters change, by the names in PEFT's `target_modules`; no model has all of them."""
DEFAULT_RANK = 16
_PLAIN_MODULES = LORA_MODULES[:7]
_FUSED_MODULES = ("o_proj", "down_proj", "qkv_proj", "gate_up_proj")


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """The graphs to draw beside the base graph, and what the one for adapters takes."""

    names: tuple[str, ...] = ("base",)
    lora_rank: int = DEFAULT_RANK
    lora_modules: tuple[str, ...] = ()
    """Projections the adapters may change, each of which the model must have; none named: all it has."""

    @classmethod
    def of(cls, graphs: str, *, lora_rank: int | None = None, lora_modules: str = "") -> GraphRequest:
        """Read lists separated by commas. The base graph is always among them. Raises InputError."""
        asked, modules = _names(graphs), _names(lora_modules)
        if unknown := [name for name in asked if name not in GRAPHS]:
            raise InputError(f"no graph is called {unknown[0]!r}: --graphs takes {', '.join(GRAPHS)}")
        if unknown := [name for name in modules if name not in LORA_MODULES]:
            raise InputError(f"no projection is called {unknown[0]!r}: --lora-modules takes {', '.join(LORA_MODULES)}")
        if "lora" not in asked and (lora_rank is not None or modules):
            raise InputError("--lora-rank and --lora-modules are for a lora graph: add it to --graphs")
        if lora_rank is not None and lora_rank < 1:
            raise InputError(f"--lora-rank {lora_rank}: a lora graph needs 1 or more")
        names = [name for name in GRAPHS if name == "base" or name in asked]
        return cls(tuple(names), lora_rank=lora_rank or DEFAULT_RANK, lora_modules=tuple(modules))

    def check(self, architecture: str, *, name: str) -> None:
        """Raise InputError for a projection that models of this architecture do not have."""
        there = _FUSED_MODULES if architecture in FUSED else _PLAIN_MODULES
        if missing := [module for module in self.lora_modules if module not in there]:
            raise InputError(f"{name} has no projection {missing[0]}: --lora-modules may name {', '.join(there)}")


BASE_ONLY = GraphRequest()


def _names(text: str) -> Sequence[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
