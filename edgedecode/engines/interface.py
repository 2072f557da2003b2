"""What an engine must offer: the `Runtime` protocol and the devices it runs on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgedecode.decoding.model import LanguageModel, ModelCard
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.pack.manifest import ModelEntry

__all__ = [
    "ADAPTERS",
    "NO_MMAP",
    "NO_REPACK",
    "Device",
    "ModelFootprint",
    "ModelRequest",
    "PlanningRuntime",
    "Runtime",
    "StateHolders",
    "role_needs",
]

NO_MMAP, NO_REPACK = "no-mmap", "no-repack"
ADAPTERS = "lora"
"""The need of a target that takes adapters: another graph, or nothing more, by the engine."""
"""Needs of `Runtime.open`: weights are read and not mapped; they stay as the file has them."""


def role_needs(role: str, needs: Sequence[str]) -> tuple[str, ...]:
    """Return what of a pack's needs its model of this role must offer: only the target takes adapters."""
    return tuple(need for need in needs if role == "target" or need != ADAPTERS)


@dataclass(frozen=True, slots=True)
class Device:
    """One place a runtime can run on, or why it cannot."""

    runtime: str
    provider: str
    description: str
    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model of the pack at `root`, and how it is to be opened."""

    entry: ModelEntry
    root: Path
    name: str
    vocabulary_size: int
    """Ids that the tokenizer knows; rows above are padding."""
    budget: Budget
    threads: int | None = None
    """None: the runtime's choice."""
    provider: str = "cpu"
    needs: Collection[str] = ()
    """What its graph must offer beside chains: "tree", "hidden", "lora", "trim", a KV type such as "kv:int8",
    `NO_MMAP` or `NO_REPACK`."""


class Runtime(Protocol):
    """An engine; entry points of group `edgedecode.runtimes` name callables that return one."""

    @property
    def name(self) -> str: ...

    def devices(self) -> Sequence[Device]: ...

    def open(self, request: ModelRequest) -> LanguageModel:
        """Load a model on the smallest of its graphs that offers what is needed.

        With "trim" an engine gives a `HeadedModel`, or a model whose card has the trimmed `token_ids`.
        Raises RuntimeUnavailable, CapabilityError (no graph offers it) or BudgetExceeded.
        """
        ...


class StateHolders(Protocol):
    """Tells what `LanguageModel.new_state` of these arguments leases."""

    def __call__(self, capacity: int, *, rows: int = 1, tree: bool = False) -> tuple[Holder, ...]: ...


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """What a model takes on an engine, known before it is loaded: upper bounds, under the names of the leases.

    card: what is known of it by then. loaded: what opening it leases. state: what its first state adds; of other states
    buffers are shared.
    """

    card: ModelCard
    loaded: tuple[Holder, ...]
    state: StateHolders


@runtime_checkable
class PlanningRuntime(Protocol):
    """An engine that tells what a model takes without loading it."""

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        """Return what `open` of this request takes. Raises as that, but for BudgetExceeded; files may be made."""
        ...
