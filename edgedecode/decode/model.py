"""The seams: what an engine, a drafter, a policy and a runtime must offer. Holds no behaviour."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from edgedecode.row_draw import NumpyRowDraw, RowDraw
from edgedecode.types import WHOLE, AdapterUse, Draft, LowRank, ModelCard, Output, Plan, RowRequest, Signals

if TYPE_CHECKING:
    from edgedecode.manifest import ModelEntry
    from edgedecode.memory import Budget
    from edgedecode.probs import Probs
    from edgedecode.sampling import SamplingOptions
    from edgedecode.verify import Verdict

__all__ = [
    "NO_MMAP",
    "NO_REPACK",
    "AdapterFileModel",
    "AdapterModel",
    "Closable",
    "Device",
    "DraftSetting",
    "Drafter",
    "DrafterSource",
    "LanguageModel",
    "NoiseSource",
    "Policy",
    "Runtime",
    "SharedNoise",
    "State",
    "UniformSource",
]

NO_MMAP, NO_REPACK = "no-mmap", "no-repack"
"""Needs of `Runtime.open`: weights are read and not mapped; they stay as the file has them."""


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


@runtime_checkable
class UniformSource(Protocol):
    """A stream of uniforms in [0, 1)."""

    def random(self) -> float: ...


class NoiseSource(UniformSource, Protocol):
    """A stream of uniforms that also has noise per id, a position for each token."""

    def take(self) -> int:
        """Return the key of the current position's noise per id, and advance."""
        ...


class SharedNoise(Protocol):
    """The noise of a stream as a function of the position: whoever asks consumes nothing."""

    def key_at(self, position: int) -> int:
        """Return the key of this position's noise per id, for `Sampler.draw`."""
        ...

    def ranked_at(self, probs: Probs, position: int, *, count: int) -> list[int]:
        """Return what this position's noise would draw first, then without that, and so on; at most `count` tokens."""
        ...


class Drafter(Protocol):
    """Proposes continuations for one session. Its indexes and states are caches: they reconcile to `context`."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    @property
    def free(self) -> bool:
        """Whether it proposes without a pass of an engine: such a drafter may be asked and not be used."""
        ...

    def begin(self, context: Sequence[int]) -> None:
        """A generation starts: forget what contradicts `context`. Until the next begin it only grows, in place."""
        ...

    def unread(self, context: Sequence[int]) -> int:
        """Return how many tokens of `context` its model must read before it can propose; 0 for a free drafter."""
        ...

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        """Propose at most `limit` tokens after `context`, which is read-only. An empty draft is an ordinary answer.

        plan: the policy's wishes (`floor`, `read_max`) to a drafter that can follow them; free ones need not.
        """
        ...

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Learn from a round, also when another drafter proposed. `context` already ends with the verdict's tokens.

        Rounds in which nobody is asked are not told: between two calls the context may grow by more than one verdict.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """What a drafter may use when a session opens it."""

    budget: Budget
    sampling: SamplingOptions
    vocabulary_size: int
    capacity: int
    """Positions the session's target state holds."""
    draft_model: LanguageModel | None
    ends: frozenset[int] = frozenset()
    """End-of-sequence ids; no draft runs past one."""
    sampled: bool = False
    """True: the verifier applies the ratio rule, so a model drafter must draw from its own distribution."""
    noise: SharedNoise | None = None
    """The noise that the target's tokens are drawn with; None: not known, or nothing is drawn."""
    tokenizer_digest: str = ""
    """What ids that are kept on disk belong to."""
    remember: bool = False
    """Whether outputs may be kept on disk, in the user's cache."""
    tree: bool = False
    """Whether trees are wanted, and the target reads them."""
    draft_max: int = 0
    """The most tokens a draft may have."""
    row_draw: RowDraw = field(default_factory=NumpyRowDraw)
    """What draws a token from a row of logits."""
    opened: Mapping[str, Drafter] = field(default_factory=dict)
    """The session's drafters that are open already, by name: one that is made of others uses these."""


class DrafterSource(Protocol):
    """Opens drafters; entry points of group `edgedecode.drafters` name callables that return one.

    One source lives as long as its pair: stores that sessions share belong to it and are leased once.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs_model(self) -> bool:
        """Whether its drafters run the pack's draft model."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """What that model must offer beside its own head, as `Runtime.open` takes it: "trim", "local"."""
        ...

    def open(self, setting: DraftSetting) -> Drafter:
        """Open a drafter for one session. Raises CapabilityError when the pair lacks what it needs."""
        ...

    def close(self) -> None:
        """Forget and give back what sessions share. Idempotent; a drafter opened after it starts afresh."""
        ...


@runtime_checkable
class Closable(Protocol):
    """Something that holds a file or memory."""

    def close(self) -> None: ...


class Policy(Protocol):
    """Chooses each round's drafter and draft length: deterministic given the signals so far, no clock, no I/O."""

    def plan(self, signals: Signals) -> Plan: ...


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

        needs: what its graph must offer beside chains: "tree", "hidden", "lora", "trim", "local", a KV type such as
        "kv:int8", `NO_MMAP` or `NO_REPACK`. Of the graphs that offer it the smallest is opened; CapabilityError when
        there is none. With "trim" an engine gives a `HeadedModel`, or a model whose card has the trimmed `token_ids`.
        Raises RuntimeUnavailable, CapabilityError or BudgetExceeded.
        """
        ...
