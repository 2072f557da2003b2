"""Fits a session into a memory limit: what is given up, in a stated order, and what that saves.

A pure function of what is wanted and of how many bytes each choice takes. What is given up changes no text, except a
smaller type of keys and values, which comes last; what was asked for by name is never given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .footprint import Holder, total_nbytes

__all__ = ["Bounds", "Choice", "Cut", "Holders", "MemoryPlan", "fit"]

LEAST_CONTEXT = 512
"""Tokens of context below which a conversation is not worth planning."""
CONTEXT_STEP = 64
"""A context that is shortened is a multiple of these."""
LEAST_DRAFT = 4
"""Longest draft below which fewer rows save next to nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a session is planned with.

    drafters: names, of which those that run the draft model are `Bounds.models`. stores: past answers are kept to draft
    from. read: weights are read, not mapped beside a copy. kv_type: of keys and values; empty: the engine's own.
    """

    context: int
    drafters: tuple[str, ...] = ()
    draft_max: int = 0
    tree: bool = False
    stores: bool = True
    read: bool = False
    kv_type: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be given up. `models`: the drafters that run the draft model. kv_type: a smaller one that can be had."""

    models: frozenset[str] = frozenset()
    least_context: int = LEAST_CONTEXT
    """The context asked for, where one was."""
    keeps_drafters: bool = False
    """A drafter or a draft length was asked for."""
    reads: bool = False
    """Weights may be read."""
    kv_type: str = ""


Holders: TypeAlias = Callable[[Choice], Sequence[Holder]]
"""Tells what a choice takes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing given up: what, what it costs the user, and how many bytes it saves."""

    what: str
    costs: str
    nbytes: int
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A choice with all that it takes.

    limit_nbytes: None: there is none. least_running, least_speculating: the smallest limits under which the model runs
    at all, and with drafts of some kind, without losing anything; None: nothing can be drafted.
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


def fit(wanted: Choice, *, bounds: Bounds, holders: Holders, limit_nbytes: int | None) -> MemoryPlan:
    """Return the first choice on the way down that fits; where none does, the last one.

    A context that had to be shortened is as long as the limit allows.
    """

    def takes(choice: Choice) -> int:
        return total_nbytes(holders(choice))

    choice, cuts = wanted, list[Cut]()
    speculating, running = (wanted if wanted.drafters else None), wanted
    for what, costs, less in _steps(wanted, bounds):
        speculating = less if less.drafters and less.kv_type == wanted.kv_type else speculating
        running = less if less.kv_type == wanted.kv_type else running
        if limit_nbytes is None or takes(choice) <= limit_nbytes:
            continue  # what is left of the way tells the smallest limits only
        if less.context < choice.context:
            less = _longest(choice, less, takes=takes, limit_nbytes=limit_nbytes)
            what = f"context beyond {less.context} tokens"
        cuts.append(Cut(what, costs, takes(choice) - takes(less), lossless=less.kv_type == wanted.kv_type))
        choice = less
    return MemoryPlan(
        choice=choice,
        holders=tuple(holders(choice)),
        cuts=tuple(cuts),
        limit_nbytes=limit_nbytes,
        least_running=takes(running),
        least_speculating=None if speculating is None else takes(speculating),
    )


def _steps(wanted: Choice, bounds: Bounds) -> Iterator[tuple[str, str, Choice]]:
    """Yield what is given up, one thing after the other: its name, what that costs, and the choice without it."""
    choice = wanted
    if bounds.reads and not choice.read:
        choice = replace(choice, read=True)
        yield "weights mapped beside their copy", "nothing: they are read, which is as fast", choice
    if choice.stores and choice.drafters and not bounds.keeps_drafters:
        choice = replace(choice, stores=False)
        yield "past answers", "drafts come from this conversation alone", choice
    if choice.tree and not bounds.keeps_drafters:
        choice = replace(choice, tree=False)
        yield "trees", "drafts are chains", choice
    while choice.draft_max > LEAST_DRAFT and not bounds.keeps_drafters:
        choice = replace(choice, draft_max=max(LEAST_DRAFT, choice.draft_max // 2))
        yield f"drafts of more than {choice.draft_max} tokens", "less speed where text repeats", choice
    free = tuple(name for name in choice.drafters if name not in bounds.models)
    if free != choice.drafters and not bounds.keeps_drafters:
        choice = replace(choice, drafters=free)
        yield "the draft model", "less speed on new text", choice
    if choice.context > bounds.least_context:
        choice = replace(choice, context=bounds.least_context)
        yield "context", "long conversations end sooner", choice
    if choice.drafters and not bounds.keeps_drafters:
        choice = replace(choice, drafters=(), draft_max=0)
        yield "drafting", "plain speed", choice
    if bounds.kv_type and choice.kv_type != bounds.kv_type:
        choice = replace(choice, kv_type=bounds.kv_type)
        yield f"keys and values in full, {choice.kv_type} instead", "answers may differ slightly", choice


def _longest(before: Choice, least: Choice, *, takes: Callable[[Choice], int], limit_nbytes: int) -> Choice:
    """Return the longest context between the two that fits, by bisection; the least where none does."""
    low, high = 0, (before.context - least.context) // CONTEXT_STEP
    if takes(least) > limit_nbytes:
        return least
    while low < high:
        middle = (low + high + 1) // 2
        if takes(replace(least, context=least.context + middle * CONTEXT_STEP)) <= limit_nbytes:
            low = middle
        else:
            high = middle - 1
    return replace(least, context=least.context + low * CONTEXT_STEP)
