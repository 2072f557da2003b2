"""A language model as the loop sees it: states, forward passes, adapters, smaller heads, and the model's card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

__all__ = [
    "AdapterFileModel",
    "AdapterModel",
    "AdapterSpan",
    "AdapterUse",
    "Head",
    "HeadedModel",
    "LanguageModel",
    "LowRank",
    "ModelCard",
    "Output",
    "RowRequest",
    "ShiftableState",
    "State",
]


RowRequest: TypeAlias = Literal["none", "last", "all"] | Sequence[int]
"""Which appended rows' logits a forward pass computes: none of them, the newest, all, or these indices of this call."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """One adapter at one scale, for the rows of one forward pass."""

    name: str
    digest: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class AdapterSpan:
    """The adapter of each position: none before `start`, `use` from there on."""

    use: AdapterUse | None = None
    start: int = 0

    def at(self, position: int) -> AdapterUse | None:
        """Return the adapter of a position."""
        return self.use if position >= self.start else None

    def shared_with(self, other: AdapterSpan) -> int | None:
        """Return how many leading positions have the same adapter in both spans; None: all of them."""
        if self == other or self.use is other.use is None:
            return None
        return min(span.start for span in (self, other) if span.use is not None)


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's change to one projection of one layer, in PEFT's orientation: the weight gains up · down."""

    layer: int
    module: str
    """The projection's name, as in PEFT's `target_modules`."""
    down: FloatArray
    """[rank, inputs], PEFT's lora_A."""
    up: FloatArray
    """[outputs, rank], PEFT's lora_B."""

    @property
    def rank(self) -> int:
        return len(self.down)

    def product(self) -> FloatArray:
        """Return the whole change, [outputs, inputs]."""
        return np.asarray(self.up @ self.down, np.float32)


@dataclass(frozen=True, slots=True)
class Output:
    """What a forward pass computed: views, valid until the model's next forward.

    logits: float32, [rows asked for, card.rows]; a row's logits come after that row's token. hidden: the same rows'
    last hidden state, [rows, hidden size], where the card offers it.
    """

    logits: FloatArray
    hidden: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a loaded model is and can do. What it cannot do, the planner goes around; an explicit request raises."""

    name: str
    rows: int
    """Width of the logits, padding included."""
    vocabulary_size: int
    """Ids the tokenizer knows; rows at and above it are padding and never sampled (unless `token_ids` maps rows)."""
    context: int
    """Most positions a state may hold."""
    tree: bool = True
    rollback: bool = True
    """Whether a state can drop its newest rows; recurrent layers cannot, and without it nothing can be drafted."""
    kv_type: str = "float32"
    kv_nbytes: int = 0
    """What keys and values of one position take; 0: the engine does not say."""
    hidden_size: int = 0
    """Size of the hidden output; 0: the graph has none."""
    token_ids: IntArray | None = field(default=None, compare=False)
    """Row → token id for a trimmed vocabulary; None: a row is its id."""
    lora_rank: int = 0
    """Largest rank of an adapter's matrices; 0: it takes no adapter."""
    lora_modules: tuple[str, ...] = ()
    """The projections an adapter may change, by their names in PEFT's `target_modules`."""
    row_invariant: bool = False
    """A row's bits depend on the row and its past alone, whatever goes with it in a pass."""
    kernels: str = ""
    """Our kernels' instruction set, or what is unusual of the engine's own; empty: those as they are."""
    kernel_noise: float | None = None
    """99.9th percentile of how far a gap between two leading logits moves between the one-row and many-row kernels of
    an engine that has both: the yardstick for two engines, too. A model that is `row_invariant` has no noise itself."""
    notes: tuple[str, ...] = ()
    """What a user must know of this export, a sentence each: where its context ends, and why."""
    weights_nbytes: int = 0
    threads: int | None = None
    """Threads the engine uses for it; None where the engine does not say."""


class State(Protocol):
    """A model's memory of one sequence: `length` settled positions, then `pending` rows since the last keep or crop.

    Pending rows form a chain or a tree that may grow over several passes. `keep` settles one root-to-leaf path of it.
    """

    @property
    def length(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def capacity(self) -> int:
        """Most settled positions plus pending rows."""
        ...

    @property
    def nbytes(self) -> int:
        """What the budget is charged: the whole planned capacity, at once."""
        ...

    @property
    def oldest_crop(self) -> int:
        """The smallest length it can go back to; 0: anywhere."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Settle these pending indices, root first, at positions length, length + 1, …; drop the other pending rows."""
        ...

    def crop(self, length: int) -> None:
        """Drop every pending row, then cut to `length`. Below `oldest_crop` or above length: CapabilityError."""
        ...

    def close(self) -> None:
        """Release the memory and its lease. Idempotent."""
        ...


@runtime_checkable
class ShiftableState(State, Protocol):
    """A state that can drop settled positions in its middle, llama.cpp's context shift."""

    @property
    def shiftable(self) -> bool:
        """Whether this one can: it depends on the model and on how keys are kept."""
        ...

    def shift(self, start: int, stop: int) -> None:
        """Drop the settled positions from start to stop, and pending rows; the positions after them move down.

        Lossy: the keys are rotated to their new positions, but what follows was computed with the dropped ones in
        sight.
        """
        ...


class LanguageModel(Protocol):
    """A loaded model. Not re-entrant; any number of states, one forward at a time."""

    @property
    def card(self) -> ModelCard: ...

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        """Make a state for `capacity` rows, settled and pending together.

        `rows` are the most logits rows one pass will be asked for, `tree` whether its rows may branch: the memory of
        both is planned now, not in mid-answer.
        Raises BudgetExceeded before allocating.
        """
        ...

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        """Append `tokens` as pending rows and compute the logits of the rows asked for.

        parents[i] is -1 (the last settled position) or a pending index counted since the last settle, rows of earlier
        calls included; None continues the newest row. A row's position is length + its depth. The output's arrays are
        views, valid until this model's next forward; a row's logits come after that row's token.
        Raises CapabilityError for a tree or an adapter the model's card does not offer.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class AdapterModel(Protocol):
    """A model whose graph takes adapters; its card says of which rank and for which projections."""

    def add_adapter(self, digest: str, matrices: Sequence[LowRank], *, scale: float = 1.0) -> None:
        """Hold an adapter for forward passes that name its digest; `scale` is its own, PEFT's alpha over rank.

        Replaces an adapter of the same digest. Raises CapabilityError where the graph lacks a projection or the rank is
        too large, InputError for matrices of other sizes, BudgetExceeded before anything is copied.
        """
        ...

    def remove_adapter(self, digest: str) -> None:
        """Give an adapter's memory back; one that is not held is not an error."""
        ...


@runtime_checkable
class AdapterFileModel(Protocol):
    """A model that takes adapters as GGUF files too."""

    def add_adapter_file(self, digest: str, path: Path, *, scale: float = 1.0) -> None:
        """Hold the GGUF adapter at `path` as `AdapterModel.add_adapter` does; its own alpha counts, times `scale`.

        Raises ManifestError for a damaged file, InputError for one of another base, CapabilityError for what the engine
        leaves out, BudgetExceeded before it is loaded.
        """
        ...


class Head(Protocol):
    """A smaller head of a model: the same passes over the same states, logits of some of the ids only."""

    @property
    def token_ids(self) -> IntArray:
        """Row → id, ascending. The array is not written to while a head has it."""
        ...

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        """Do what the model's `forward` does, with logits [rows asked for, len(token_ids)]."""
        ...


@runtime_checkable
class HeadedModel(Protocol):
    """A model with a smaller head beside its own, over one set of weights and states."""

    @property
    def trimmed(self) -> Head | None:
        """The head of the pack's trimmed vocabulary; None: this graph has none."""
        ...
