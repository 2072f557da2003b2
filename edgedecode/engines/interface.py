"""The interface of an engine: the `Runtime` protocol, its requests, devices and memory footprint."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from edgedecode.decoding.model import LanguageModel, LowRank, ModelCard
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget, Holder
from edgedecode.pack.manifest import ModelEntry

if TYPE_CHECKING:  # only a package for the native library is made of them
    from .native_model import NativeModel

__all__ = [
    "ADAPTERS",
    "HIDDEN_ROWS",
    "NO_MMAP",
    "NO_REPACK",
    "SQUARES",
    "TARGET_KINDS",
    "Device",
    "ModelFootprint",
    "ModelRequest",
    "NativeRuntime",
    "PlanningRuntime",
    "Runtime",
    "StateHolders",
    "check_heads",
    "draft_engine",
    "role_needs",
    "serves_heads",
]

NO_MMAP, NO_REPACK = "no-mmap", "no-repack"
"""Needs of `Runtime.open`: read the weights instead of mapping them; keep them in the file's layout."""
ADAPTERS = "lora"
"""The need of a model that takes adapters. Some engines open another graph for it."""
SQUARES = "squares"
"""The need of a model that is a `SquaresModel`."""
HIDDEN_ROWS = "hidden"
"""The need of a model that is a `HiddenModel`."""
TARGET_KINDS = ("edgedecode", "sglang", "vllm", "llama-server", "openai", "ollama")
"""The kinds of servers that a target may be on (`target_server`)."""
INT8_KV = "kv:int8"
"""The need of a model with keys and values of 8 bits."""


def role_needs(role: str, needs: Sequence[str]) -> tuple[str, ...]:
    """Return the needs that apply to a model of this role: some only the target must meet."""
    return tuple(need for need in needs if role == "target" or need not in (ADAPTERS, SQUARES, HIDDEN_ROWS))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a runtime can run on, or the reason why it cannot."""

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
    """The number of the tokenizer's ids; rows above are padding."""
    budget: Budget
    threads: int | None = None
    """None: the runtime's choice."""
    provider: str = "cpu"
    needs: Collection[str] = ()
    """Requirements in addition to chains: "tree", "lora", a KV type such as "kv:int8", `NO_MMAP`, `NO_REPACK`,
    `SQUARES` or `HIDDEN_ROWS`."""
    taps: tuple[int, ...] = ()
    """The layers whose inputs a drafting head reads, the number of layers for what follows the final norm: the model's
    states are `FeatureState`s."""
    beside: "LanguageModel | NativeModel | None" = None
    """The target that a drafting head is opened for, whose embedding it reads; None: unknown, as in a plan."""


class Runtime(Protocol):
    """An engine; entry points of group `edgedecode.runtimes` name callables that return one."""

    @property
    def name(self) -> str: ...

    def devices(self) -> Sequence[Device]: ...

    def open(self, request: ModelRequest) -> LanguageModel:
        """Load a model on the smallest of its graphs that meets `request.needs`.

        Raises RuntimeUnavailable, CapabilityError (no graph meets the needs) or BudgetExceeded.
        """
        ...


class StateHolders(Protocol):
    """Returns what `LanguageModel.new_state` leases for these arguments."""

    def __call__(self, capacity: int, *, rows: int = 1, tree: bool = False) -> tuple[Holder, ...]: ...


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """Upper bounds of a model's memory on an engine, known before loading, under the names of its leases.

    card: the model's card as known by then. loaded: leased by opening the model. state: leased by its first state;
    further states share buffers with it. loading_nbytes: leased in addition until the model is open.
    """

    card: ModelCard
    loaded: tuple[Holder, ...]
    state: StateHolders
    loading_nbytes: int = 0


def draft_engine(runtime: object) -> str:
    """Return the name of the engine that opens the draft: an engine's own, unless it places the draft elsewhere."""
    return str(getattr(runtime, "draft_name", getattr(runtime, "name", "")))


def serves_heads(runtime: object, provider: str) -> bool:
    """Return whether an engine runs drafting heads."""
    return provider == "cpu" and bool(getattr(runtime, "serves_heads", False))


def check_heads(runtime: object, provider: str) -> None:
    """Raise CapabilityError if the engine runs no drafting heads."""
    if not serves_heads(runtime, provider):
        name = getattr(runtime, "name", "")
        raise CapabilityError(f"the engine {name} runs no drafting heads here: use --runtime onnx on the processor")


@runtime_checkable
class PlanningRuntime(Protocol):
    """An engine that can plan a model's memory without loading it."""

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        """Return the memory that `open` takes. May build files; raises like `open`, except BudgetExceeded."""
        ...


@runtime_checkable
class NativeRuntime(Protocol):
    """An engine whose models the native library runs too."""

    def native_model(
        self, request: ModelRequest, folder: Path, adapters: Mapping[str, Sequence[LowRank]] | None = None
    ) -> "NativeModel":
        """Write a model's files to `folder`/`request.name`, and return its facts.

        adapters: matrices by name, for which `request.needs` has `ADAPTERS`.
        Raises CapabilityError for a model that the native library cannot run, with the reason.
        """
        ...
