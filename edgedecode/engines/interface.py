"""What an engine must offer: the `Runtime` protocol and the devices it runs on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgedecode.decoding.model import LanguageModel
from edgedecode.memory import Budget
from edgedecode.pack.manifest import ModelEntry

__all__ = ["NO_MMAP", "NO_REPACK", "Device", "Runtime"]

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


class Runtime(Protocol):
    """An engine; entry points of group `edgedecode.runtimes` name callables that return one."""

    @property
    def name(self) -> str: ...

    def devices(self) -> Sequence[Device]: ...

    def open(
        self,
        entry: ModelEntry,
        root: Path,
        *,
        name: str,
        vocabulary_size: int,
        budget: Budget,
        threads: int | None,
        provider: str,
        needs: Collection[str] = (),
    ) -> LanguageModel:
        """Load one model of the pack at `root`; the tokenizer knows `vocabulary_size` ids, rows above are padding.

        needs: what its graph must offer beside chains: "tree", "hidden", "lora", "trim", a KV type such as "kv:int8",
        `NO_MMAP` or `NO_REPACK`. Of the graphs that offer it the smallest is opened; CapabilityError when
        there is none. With "trim" an engine gives a `HeadedModel`, or a model whose card has the trimmed `token_ids`.
        Raises RuntimeUnavailable, CapabilityError or BudgetExceeded.
        """
        ...
