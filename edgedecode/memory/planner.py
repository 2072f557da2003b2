"""Fits a session into a memory limit by giving things up in a fixed order, and reports what each saves.

A pure function of the wanted choice and the bytes that each choice takes. Cuts never change the text, and options that
the user set explicitly are never cut.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgedecode.errors import BudgetExceeded

from .budget import Holder, total_nbytes
from .limit import Limit
from .sizes import size_option

LEAST_CONTEXT = 512
"""The shortest context, in tokens, that is planned for a conversation."""
CONTEXT_STEP = 64
"""A context is shortened in steps of this many tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of a session that the plan may change.

    drafters: names; those in `Bounds.models` run the draft model. no_mmap: weights are read instead of mapped, which
    avoids a mapping in addition to the engine's copy. kv_type: of the KV cache; empty: the engine's default.
    """

    context: int
    drafters: tuple[str, ...] = ()
    draft_max: int = 0
    tree: bool = False
    """Drafts are trees."""
    draft_context: int = 0
    """Positions of the draft model's state; 0: as many as `context`."""
    no_mmap: bool = False
    kv_type: str = ""
    adapter: str = ""
    """Name of the adapter that answers; empty: none."""
    adapter_scale: float = 1.0
    switches: bool = False
    """The draft model writes tokens (entropy switching)."""
    sampled: bool = False
    """The drafts' distributions are kept, as the ratio rule needs."""
    draft_adapter: str = ""
    """Name of the adapter that the draft model drafts with; empty: none."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what may be cut. `models`: the drafters that run the draft model."""

    models: frozenset[str] = frozenset()
    least_context: int = LEAST_CONTEXT
    """The shortest context allowed; the requested one if the user requested one."""
    draft_contexts: tuple[int, ...] = ()
    """Shorter contexts that the draft model may have, longest first."""
    keeps_drafters: bool = False
    """The user requested a drafter or a draft length."""
    instead: str = ""
    """The drafter in place of the first one where that does not fit; empty: none."""
    may_skip_mmap: bool = False
    """Reading the weights instead of mapping them is allowed, and takes less memory."""


Holders: TypeAlias = Callable[[Choice], Sequence[Holder]]
"""Returns the memory that a choice takes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing given up, its effect for the user, and the bytes it saves."""

    what: str
    effect: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A choice and the memory it takes.

    limit_nbytes: None: no limit. least_running, least_speculating: the smallest limits under which the model runs at
    all, and with any drafter; None: no drafter is available.
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
        """Return an error for this plan whose advice names the smallest limits to run and to draft.

        error: the first lease that did not fit. beside: bytes under the limit that are not part of the plan.
        """
        least, drafting = (beside + (each or 0) for each in (self.least_running, self.least_speculating))
        advice = limit.raised(least)
        if drafting > least:
            advice += f" to run, {size_option(drafting)} to draft"
        if context_asked:
            advice += ", or shorten the context (--ctx-size)"
        return BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=least)


def fit(wanted: Choice, *, bounds: Bounds, holders: Holders, limit_nbytes: int | None) -> MemoryPlan:
    """Return a plan for the first of the successively reduced choices that fits, or for the last one if none does.

    A shortened context is then lengthened as far as the limit allows.
    """

    def takes(choice: Choice) -> int:
        return total_nbytes(holders(choice))

    choices = [wanted, *_reduced(wanted, bounds)]
    speculating = [choice for choice in choices if choice.drafters]
    chosen = wanted
    if limit_nbytes is not None:
        chosen = next((choice for choice in choices if takes(choice) <= limit_nbytes), choices[-1])
        if takes(chosen) <= limit_nbytes:
            chosen = _with_longest_context(chosen, wanted, takes=takes, limit_nbytes=limit_nbytes)
    return MemoryPlan(
        choice=chosen,
        holders=tuple(holders(chosen)),
        cuts=tuple(_cuts(wanted, chosen, takes=takes)),
        limit_nbytes=limit_nbytes,
        least_running=takes(choices[-1]),
        least_speculating=takes(speculating[-1]) if speculating else None,
    )


def _reduced(wanted: Choice, bounds: Bounds) -> Iterator[Choice]:
    """Yield successively smaller choices, each with one more thing cut."""
    choice = wanted
    if bounds.may_skip_mmap and not choice.no_mmap:
        choice = replace(choice, no_mmap=True)
        yield choice
    if choice.draft_adapter:  # loaded last, and only if there is memory for it
        choice = replace(choice, draft_adapter="")
        yield choice
    may_drop = bool(choice.drafters) and not bounds.keeps_drafters
    whole = choice
    for positions in bounds.draft_contexts:
        choice = replace(choice, draft_context=positions)
        yield choice
    if may_drop and bounds.instead:
        drafters = (bounds.instead, *choice.drafters[1:])
        for positions in (whole.draft_context, *bounds.draft_contexts):
            choice = replace(choice, drafters=drafters, draft_context=positions)
            yield choice
    if may_drop:
        drafters = tuple(name for name in choice.drafters if name not in bounds.models)
        choice = replace(choice, drafters=drafters, draft_context=choice.draft_context if choice.switches else 0)
        yield choice
    if choice.context > bounds.least_context:
        choice = replace(choice, context=bounds.least_context)
        yield choice
    if may_drop:
        choice = replace(choice, drafters=(), draft_max=0)
        yield choice


def _with_longest_context(
    choice: Choice, wanted: Choice, *, takes: Callable[[Choice], int], limit_nbytes: int
) -> Choice:
    """Return the choice with the longest context that fits, found by bisection."""
    low, high, least = 0, -(-(wanted.context - choice.context) // CONTEXT_STEP), choice.context
    while low < high:
        middle = (low + high + 1) // 2
        longer = replace(choice, context=min(wanted.context, least + middle * CONTEXT_STEP))
        low, high = (middle, high) if takes(longer) <= limit_nbytes else (low, middle - 1)
    return replace(choice, context=min(wanted.context, least + low * CONTEXT_STEP))


def _cuts(wanted: Choice, chosen: Choice, *, takes: Callable[[Choice], int]) -> Iterator[Cut]:
    """Yield the differences of the chosen from the wanted choice, in the order of cutting."""
    drafters = ", ".join(name for name in wanted.drafters if name not in chosen.drafters)
    without = "baseline speed" if not chosen.drafters else "less speed on new text"
    if more := [name for name in chosen.drafters if name not in wanted.drafters]:
        without = f"{more[0]} drafts instead"
    texts = {
        "no_mmap": ("memory-mapped weights in addition to their copy", "they are read, which is as fast"),
        "draft_adapter": ("the draft model's adapter", "drafts are accepted less often"),
        "draft_context": (
            f"the draft model's context beyond {chosen.draft_context} tokens",
            "it drafts from the most recent ones",
        ),
        "drafters": (f"drafts by {drafters}", without),
        "context": (f"context beyond {chosen.context} tokens", "long conversations end sooner"),
    }
    before = wanted
    for name, (what, effect) in texts.items():
        after = replace(before, **{name: getattr(chosen, name)})
        if name == "drafters":
            after = replace(after, draft_max=chosen.draft_max)
        if after != before:
            yield Cut(what, effect, takes(before) - takes(after))
        before = after
