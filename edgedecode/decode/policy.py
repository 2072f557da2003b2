"""The values that cross the seams: drafts, model outputs, cards, plans. Knows nothing about engines, text or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from edgedecode.probs import Probs
    from edgedecode.vocabulary import TrimmedVocabulary

__all__ = [
    "AdapterUse",
    "Draft",
    "DraftMode",
    "FinishReason",
    "FloatArray",
    "IntArray",
    "LowRank",
    "ModelCard",
    "Offer",
    "Outcome",
    "Output",
    "Plan",
    "RankRates",
    "RoundCost",
    "RowRequest",
    "Score",
    "Signals",
    "TreeShape",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

RowRequest: TypeAlias = Literal["none", "last", "all"] | Sequence[int]
"""Which appended rows' logits a forward pass computes: none of them, the newest, all, or these indices of this call."""


RankRates: TypeAlias = tuple[tuple[float, ...], ...]
"""[depth][rank] → how often a drafter's guess of this rank, 0 the likeliest, is the target's token where all guesses
above it were; the last depth's serve deeper ones too."""


class DraftMode(Enum):
    """How the drafter chose its tokens. The drafter declares it; the verifier never guesses."""

    DETERMINISTIC = "deterministic"
    SAMPLED = "sampled"
    """One chain, each token really drawn from `Draft.probs` (what the ratio rule needs)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal: a chain, or a tree in which parents precede their children.

    parents[i] is the index of token i's parent in this draft, -1 for the context's last token; None is a chain.
    probs[i], in mode SAMPLED, is the distribution token i was drawn from. An empty draft is an ordinary answer.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    probs: tuple[Probs, ...] | None = None
    mode: DraftMode = DraftMode.DETERMINISTIC
    source: str = "none"
    """The drafter's name, for statistics and colouring."""
    match: int = 0
    """How many of the context's last tokens were found again; 0 where nothing is looked up. Longer ones are surer."""
    vocabulary: TrimmedVocabulary | None = field(default=None, compare=False)
    """All that its drafter could have said; None: anything."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """Return the first `length` tokens of it; a chain stays a chain, and parents precede their children."""
        if length >= len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:length],
            parents=None if self.parents is None else self.parents[:length],
            probs=None if self.probs is None else self.probs[:length],
        )


EMPTY_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """One adapter at one scale, for the rows of one forward pass."""

    name: str
    digest: str
    scale: float = 1.0


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
    widths: tuple[int, ...] | None = None
    """Pass widths of a static-shape provider; None: any width."""
    tree: bool = True
    rollback: bool = True
    """Whether a state can drop its newest rows; recurrent layers cannot, and without it nothing can be drafted."""
    kv_types: tuple[str, ...] = ("float32",)
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


class Outcome(Enum):
    """How a round ended. Every round ends in exactly one of these, so their counts add up to the rounds."""

    CORRECTION = "correction"
    """The target's token was none of the drafted continuations."""
    BONUS = "bonus"
    """Every drafted token on the path was accepted, and one more came from the target (also: nothing was drafted)."""
    ENDED = "ended"
    """The target's token was an end-of-sequence token."""


class FinishReason(str, Enum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence token or a stop string."""
    LENGTH = "length"
    """`max_tokens` were generated."""
    CONTEXT = "context"
    """The context is full."""
    CANCELLED = "cancelled"
    """The caller closed the stream."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a free drafter would propose for the next round: only its size and how sure its lookup was."""

    drafter: str
    length: int
    match: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """What became of an offer or a draft, once the tokens it spoke of were emitted, whoever had proposed them.

    accepted == length is censored: with more tokens it might have gone on.
    """

    drafter: str
    length: int
    accepted: int
    match: int = 0


NO_DRAFTER, ASKED = "none", "asked"


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round took: the target's pass over `width` tokens, the drafting before it, and the host's own work."""

    width: int
    pass_seconds: float
    host_seconds: float = 0.0
    drafter: str = NO_DRAFTER
    """Who drafted; `NO_DRAFTER`: nobody was asked; `ASKED`: drafters were, and nothing was drafted."""
    drafted: int = 0
    accepted: int = 0
    read: int = 0
    """Tokens the drafter's model had to read before it could propose."""
    draft_seconds: float = 0.0
    match: int = 0
    levels: int = 0
    """Of a tree that a drafter's model grew, a pass each; 0: it drafted a token a pass."""
    repeats: int = 0
    """Plain rounds after this plain one whose times were not kept: at rest nobody is asked, and little is noted."""


@dataclass(frozen=True, slots=True)
class Signals:
    """All a policy may know before a round, JSON-serialisable: measured times come in here, a policy has no clock."""

    round: int
    """How many times the policy was asked in this generation: with 1 it begins."""
    context_tokens: int
    remaining_tokens: int
    """How many tokens may still be emitted."""
    offers: tuple[Offer, ...] = ()
    """What the free drafters would propose now."""
    unread: tuple[tuple[str, int], ...] = ()
    """Per drafter with a model of its own: how many tokens of the context that has still to read."""
    costs: tuple[RoundCost, ...] = ()
    """The rounds since the last call."""
    scores: tuple[Score, ...] = ()
    """Offers whose tokens were emitted since the last call."""
    rates: tuple[tuple[str, RankRates], ...] = ()
    """Of drafters that can propose trees: what their guesses are worth, where that moved since the last call."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Signals:
        """Read what `dataclasses.asdict` and JSON made of it. Raises KeyError or TypeError for anything else."""
        return cls(
            round=value["round"],
            context_tokens=value["context_tokens"],
            remaining_tokens=value["remaining_tokens"],
            offers=tuple(Offer(**offer) for offer in value["offers"]),
            unread=tuple((name, count) for name, count in value["unread"]),
            costs=tuple(RoundCost(**cost) for cost in value["costs"]),
            scores=tuple(Score(**score) for score in value["scores"]),
            rates=tuple((name, tuple(tuple(depth) for depth in rates)) for name, rates in value.get("rates", ())),
        )


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without its tokens, parents first: node i continues node parents[i] (-1: the context) by the guess that
    its drafter ranks there in place ranks[i], 0 the likeliest."""

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def branches(self) -> bool:
        """Whether it is more than one chain."""
        return any(parent != index - 1 for index, parent in enumerate(self.parents))

    def cut(self, nodes: int) -> TreeShape:
        """Return its first nodes, at most so many."""
        return self if nodes >= len(self) else TreeShape(self.parents[:nodes], self.ranks[:nodes])


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's decision for one round. `draft_max` 0 is plain decoding."""

    draft_max: int
    drafter: str | None = None
    """Whose draft; None: the first drafter there is."""
    floor: float = 0.0
    """A drafter with a model stops where the chance that its whole draft is accepted falls below this."""
    read_max: int = 0
    """A drafter that is this far behind reads only so many of the newest tokens, and none before them; 0: all."""
    rest: int = 0
    """How many rounds after this one are plain, without asking anyone."""
    reason: str = ""
    """Why it is as it is, in a word or two, for statistics and traces."""
    shape: TreeShape | None = None
    """The tree to fill with guesses; None: the drafter's own form, mostly a chain."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Plan:
        """Read what `dataclasses.asdict` and JSON made of it. Raises KeyError or TypeError for anything else."""
        shape = value.get("shape")
        if shape is not None:
            shape = TreeShape(tuple(shape["parents"]), tuple(shape["ranks"]))
        return cls(**{**value, "shape": shape})


WHOLE = Plan(0)
"""No wishes to a drafter: it reads everything and stops at its limit."""
