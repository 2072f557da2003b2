"""The interface of a language model: states, forward passes, adapters, and the model's card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray

__all__ = [
    "AdapterFileModel",
    "AdapterModel",
    "AdapterSpan",
    "AdapterUse",
    "HiddenModel",
    "LanguageModel",
    "LowRank",
    "ModelCard",
    "Output",
    "RowRequest",
    "SquaresModel",
    "State",
    "TopState",
]


RowRequest: TypeAlias = Literal["none", "last", "all"] | Sequence[int]
"""Rows whose logits a forward pass computes: none, the last, all, or these indices of the call's tokens."""


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
        return self.shapes[0][0]

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of `down` and `up`."""
        return self.down.shape, self.up.shape

    def piece(self, module: str, start: int, stop: int) -> LowRank:
        """Return the change of the outputs from `start` to `stop`, which are a projection of this name."""
        return LowRank(self.layer, module, self.down, self.up[start:stop])

    def product(self) -> FloatArray:
        """Return the dense change, [outputs, inputs]."""
        return np.asarray(self.up @ self.down, np.float32)


@dataclass(frozen=True, slots=True)
class Output:
    """The outputs of a forward pass: views, valid until the model's next forward.

    logits: float32, [rows asked for, card.rows]; a row's logits predict the token after that row's.
    """

    logits: FloatArray


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Properties and capabilities of a loaded model. The planner avoids what is missing; explicit requests raise."""

    name: str
    rows: int
    """Width of the logits, padding included."""
    vocabulary_size: int
    """Number of the tokenizer's ids; rows from there on are padding, never sampled (unless `token_ids` maps rows)."""
    context: int
    """Most positions a state may hold."""
    tree: bool = True
    tree_rows: int = 0
    """Most pending rows where they branch; 0: as many as a state has."""
    rollback: bool = True
    """Whether a state can drop its last rows, which drafting requires; recurrent layers cannot."""
    hidden: bool = False
    """Whether it is a `HiddenModel`."""
    kv_type: str = "float32"
    kv_nbytes: int = 0
    """Bytes of one position's keys and values; 0: the engine does not report them."""
    token_ids: IntArray | None = field(default=None, compare=False)
    """Row → token id for a trimmed vocabulary; None: a row is its id."""
    lora_rank: int = 0
    """Largest rank of an adapter's matrices; 0: the model takes no adapter."""
    lora_modules: tuple[str, ...] = ()
    """The projections an adapter may change, by their names in PEFT's `target_modules`."""
    row_invariant: bool = False
    """A row's bits depend only on the row and its past, not on the other rows of the pass."""
    kernels: str = ""
    """The instruction set of our kernels, or a deviation from the engine's default kernels; empty: the default ones."""
    kernel_noise: float | None = None
    """99.9th percentile of the change of the gap between the two leading logits between the one-row and the many-row
    kernels of an engine that has both; also the tolerance for comparing two engines. A `row_invariant` model itself has
    no such noise."""
    notes: tuple[str, ...] = ()
    """Limitations of this export that a user must know, a sentence each: where its context ends, and why."""
    weights_nbytes: int = 0
    threads: int | None = None
    """Threads the engine uses for it; None: the engine does not report them."""
    top_rows: int = 0
    """How many of a row's logits are known, those of the likeliest tokens; all others are -inf. 0: all are known."""
    draws: bool = False
    """Whether a row has the one token that the model's own sampler drew, with the session's options."""
    widths: tuple[int, ...] = ()
    """Ascending widths of passes that give every row logits; a pass is padded to the next one, and more rows take
    several passes. Empty: a pass has any number of rows."""
    away_seconds: float = 0.0
    """Of a pass over several rows on the way to a server and back, which plain decoding, in a stream, does not take."""


class State(Protocol):
    """A model's KV state of one sequence: `length` settled positions, then `pending` rows since the last keep or crop.

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
        """Bytes that the budget is charged: those of the full capacity, from the start."""
        ...

    @property
    def oldest_crop(self) -> int:
        """The smallest length that `crop` can roll back to; 0: any."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Settle these pending indices, root first, at positions length, length + 1, …; drop the other pending rows."""
        ...

    def crop(self, length: int) -> None:
        """Drop every pending row, then roll back to `length`. CapabilityError below `oldest_crop` or above length.

        A state of recurrent layers may go back further, to one that it has kept: its `length` tells what is left.
        """
        ...

    def close(self) -> None:
        """Release the memory and its lease. Idempotent."""
        ...


@runtime_checkable
class TopState(State, Protocol):
    """A state of a model whose rows have the likeliest tokens only, and which may be left alone by its server.

    Its session tells how it draws: how many of the likeliest tokens decide, and the noise's seed; whether rounds
    without a draft may follow each other, which the server could write on its own, and an answer's most tokens; and
    whether it switches, so that the draft model goes on after few.
    """

    top: int
    sampling: Mapping[str, float]
    seed: int
    streams: bool
    switches: bool
    limit: int

    @property
    def alone(self) -> str:
        """Why another model goes on in this answer; empty: none does."""
        ...


class LanguageModel(Protocol):
    """A loaded model. Not re-entrant; any number of states, one forward at a time."""

    @property
    def card(self) -> ModelCard: ...

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        """Make a state for `capacity` rows, settled and pending together.

        rows: the most logits rows of one pass. tree: whether pending rows may branch. The memory of both is reserved
        now, not during an answer.
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
        calls included; None continues the last row. A row's position is length + its depth. The output's arrays are
        views, valid until this model's next forward.
        Raises CapabilityError for a tree or an adapter that the model's card does not offer.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class AdapterModel(Protocol):
    """A model whose graph takes adapters, of the rank and for the projections on its card."""

    def add_adapter(self, digest: str, matrices: Sequence[LowRank]) -> None:
        """Load an adapter for forward passes that name its digest.

        Replaces an adapter of the same digest. Raises CapabilityError if the graph lacks a projection or the rank is
        too large, InputError for matrices of other sizes, BudgetExceeded before anything is copied.
        """
        ...

    def prepare_adapter(self, use: AdapterUse) -> object:
        """Allocate what passes with this adapter at this scale need, and return an object that keeps it allocated.

        A state that had such a pass keeps it allocated too. Raises CapabilityError if the adapter is not loaded,
        InputError for a scale that is not a finite number, BudgetExceeded before anything is copied.
        """
        ...

    def remove_adapter(self, digest: str, *, scale: float | None = None) -> None:
        """Release an adapter's memory; does nothing if it is not loaded.

        scale: release only what states keep allocated for this scale.
        """
        ...


@runtime_checkable
class SquaresModel(LanguageModel, Protocol):
    """A model that also sums the squares of its matrices' inputs, which tell how much each of their columns counts."""

    @property
    def squares(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """By matrix, the sum of each column's squares over all rows of all passes until now, float64 [columns].

        The matrices are those of the layers, by their tensors' names.
        """
        ...


@runtime_checkable
class HiddenModel(LanguageModel, Protocol):
    """A model that also gives what its logits are made of: the last layer's output, after the final norm."""

    def hidden_rows(self, tokens: Sequence[int], state: State, *, rows: RowRequest = "last") -> FloatArray:
        """Append `tokens` as `forward` does, and return these rows, float32 [rows, hidden size]: a copy.

        Raises CapabilityError if the model's card does not offer them.
        """
        ...


@runtime_checkable
class AdapterFileModel(Protocol):
    """A model that takes adapters as GGUF files too."""

    def add_adapter_file(self, digest: str, path: Path) -> None:
        """Load the GGUF adapter at `path` like `AdapterModel.add_adapter`; the file's alpha applies.

        Raises ManifestError for a damaged file, InputError for one of another base, CapabilityError for features that
        the engine does not support, BudgetExceeded before it is loaded.
        """
        ...
