"""What an engine must offer: the `Runtime` protocol and the devices it runs on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgedecode.decoding.model import LanguageModel
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry

__all__ = ["NO_MMAP", "NO_REPACK", "Device", "ModelRequest", "Runtime"]

NO_MMAP, NO_REPACK = "no-mmap", "no-repack"
"""Needs of `Runtime.open`: weights are read and not mapped; they stay as the file has them."""


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
