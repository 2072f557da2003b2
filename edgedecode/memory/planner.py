"""Fits a session into a memory limit: what is given up, in a stated order, and what that saves.

A pure function of what is wanted and of how many bytes each choice takes. What is given up changes no text, and what
was asked for by name is never given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgedecode.errors import BudgetExceeded

from .footprint import Holder, total_nbytes
from .limit import Limit
from .sizes import size_option

__all__ = ["LEAST_CONTEXT", "Bounds", "Choice", "Cut", "Holders", "MemoryPlan", "fit"]

LEAST_CONTEXT = 512
"""Tokens of context below which a conversation is not worth planning."""
CONTEXT_STEP = 64
"""A context that is shortened is a multiple of these."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a session is planned with.

    drafters: names, of which those that run the draft model are `Bounds.models`. no_mmap: weights are read, not mapped
    beside a copy. kv_type: of keys and values; empty: the engine's own.
    """

    context: int
    drafters: tuple[str, ...] = ()
    draft_max: int = 0
    tree: bool = False
    draft_context: int = 0
    """Positions of the draft model's state; 0: as many as the context's."""
    no_mmap: bool = False
    kv_type: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be given up. `models`: the drafters that run the draft model."""

    models: frozenset[str] = frozenset()
    least_context: int = LEAST_CONTEXT
    """The context asked for, where one was."""
    draft_contexts: tuple[int, ...] = ()
    """Shorter ones that the draft model may have, the longest first."""
    keeps_drafters: bool = False
    """A drafter or a draft length was asked for."""
    may_skip_mmap: bool = False
    """Weights may be read, and take less so."""


Holders: TypeAlias = Callable[[Choice], Sequence[Holder]]
"""Tells what a choice takes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing given up: what, what that means for the user, and how many bytes it saves."""

    what: str
    effect: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A choice with all that it takes.

    limit_nbytes: None: there is none. least_running, least_speculating: the smallest limits under which the model runs
    at all, and with drafts of some kind; None: nothing can be drafted.
    """

    choice: Choice
    holders: tuple[Holder, ...]
    cuts: tuple[Cut, ...]
    limit_nbytes: int | None
    least_running: int
    least_speculating: int | None

    @property
    def nbytes(self) -> int:
        return total_nbytes(self.holders)

    @property
    def fits(self) -> bool:
        return self.limit_nbytes is None or self.nbytes <= self.limit_nbytes

    def refusal(self, error: BudgetExceeded, limit: Limit, *, beside: int = 0, context_asked: bool) -> BudgetExceeded:
        """Return the refusal of what was planned, which tells the smallest limits that it runs and drafts in.

        error: what was asked for first that did not fit. beside: bytes of the limit that are no part of the plan.
        """
        least, drafting = (beside + (each or 0) for each in (self.least_running, self.least_speculating))
        advice = limit.raised(least)
        if drafting > least:
            advice += f" to run, {size_option(drafting)} to draft"
        if context_asked:
            advice += ", or shorten the context (--ctx-size)"
        return BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=least)


def fit(wanted: Choice, *, bounds: Bounds, holders: Holders, limit_nbytes: int | None) -> MemoryPlan:
    """Return the first choice on the way down that fits, with as much of what was given up before as fits beside it.

    Where none does, the last one. A context that had to be shortened is as long as the limit allows.
    """

    def takes(choice: Choice) -> int:
        return total_nbytes(holders(choice))

    way = [wanted, *_way_down(wanted, bounds)]
    speculating = [choice for choice in way if choice.drafters]
    chosen = wanted
    if limit_nbytes is not None:
        chosen = next((choice for choice in way if takes(choice) <= limit_nbytes), way[-1])
        if takes(chosen) <= limit_nbytes:
            chosen = _given_back(chosen, wanted, takes=takes, limit_nbytes=limit_nbytes)
    return MemoryPlan(
        choice=chosen,
        holders=tuple(holders(chosen)),
        cuts=tuple(_cuts(wanted, chosen, takes=takes)),
        limit_nbytes=limit_nbytes,
        least_running=takes(way[-1]),
        least_speculating=takes(speculating[-1]) if speculating else None,
    )


def _way_down(wanted: Choice, bounds: Bounds) -> Iterator[Choice]:
    """Yield one choice after the other, each without one thing more."""
    choice = wanted
    if bounds.may_skip_mmap and not choice.no_mmap:
        choice = replace(choice, no_mmap=True)
        yield choice
    may_drop = bool(choice.drafters) and not bounds.keeps_drafters
    if may_drop and choice.tree:
        choice = replace(choice, tree=False)
        yield choice
    for positions in bounds.draft_contexts:
        choice = replace(choice, draft_context=positions)
        yield choice
    if may_drop:
        drafters = tuple(name for name in choice.drafters if name not in bounds.models)
        choice = replace(choice, drafters=drafters, draft_context=0)
        yield choice
    if choice.context > bounds.least_context:
        choice = replace(choice, context=bounds.least_context)
        yield choice
    if may_drop:
        choice = replace(choice, drafters=(), draft_max=0)
        yield choice


def _given_back(choice: Choice, wanted: Choice, *, takes: Callable[[Choice], int], limit_nbytes: int) -> Choice:
    """Return the choice with as long a context as fits."""
    low, high, least = 0, -(-(wanted.context - choice.context) // CONTEXT_STEP), choice.context
    while low < high:
        middle = (low + high + 1) // 2
        longer = replace(choice, context=min(wanted.context, least + middle * CONTEXT_STEP))
        low, high = (middle, high) if takes(longer) <= limit_nbytes else (low, middle - 1)
    return replace(choice, context=min(wanted.context, least + low * CONTEXT_STEP))


def _cuts(wanted: Choice, chosen: Choice, *, takes: Callable[[Choice], int]) -> Iterator[Cut]:
    """Yield what the chosen lacks of what was wanted, in the order of giving up."""
    drafters = ", ".join(name for name in wanted.drafters if name not in chosen.drafters)
    without = "plain speed" if not chosen.drafters else "less speed on new text"
    told = {
        "no_mmap": ("memory-mapped weights beside their copy", "they are read, which is as fast"),
        "tree": ("trees", "drafts are chains"),
        "draft_context": (
            f"the draft model's context beyond {chosen.draft_context} tokens",
            "it drafts from the newest ones",
        ),
        "drafters": (f"drafts by {drafters}", without),
        "context": (f"context beyond {chosen.context} tokens", "long conversations end sooner"),
    }
    before = wanted
    for name, (what, effect) in told.items():
        after = replace(before, **{name: getattr(chosen, name)})
        if name == "drafters":
            after = replace(after, draft_max=chosen.draft_max)
        unsaid = not chosen.drafters and name == "tree"  # goes with the drafters
        if after != before and not unsaid:
            yield Cut(what, effect, takes(before) - takes(after))
        before = after
