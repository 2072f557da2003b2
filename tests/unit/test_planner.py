"""The memory planner: which features it cuts, over a grid of requested sessions, permitted cuts and limits."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import pairwise, product

import pytest

from edgedecode.memory.budget import Holder, total_nbytes
from edgedecode.memory.planner import Bounds, Choice, MemoryPlan, fit

MODELS = frozenset({"trim", "model", "tree"})


def holders(choice: Choice) -> tuple[Holder, ...]:
    """Return the memory that a toy pack needs: every field of a choice has its own size."""
    found = [
        Holder("weights", 700 if choice.no_mmap else 1000),
        Holder("kv", choice.context * 4),
        Holder("logits", 8 * (choice.draft_max + 1) * (2 if choice.tree else 1)),
    ]
    if MODELS & set(choice.drafters):
        found.append(Holder("draft", 400 + (choice.draft_context or choice.context)))
    if "suffix" in choice.drafters:
        found.append(Holder("index", choice.context // 8))
    return tuple(found)


def nbytes_of(choice: Choice) -> int:
    return total_nbytes(holders(choice))


WANTED = [
    Choice(context=context, drafters=drafters, draft_max=draft_max if drafters else 0, tree=tree and drafters != ())
    for context, drafters, draft_max, tree in product(
        (64, 512, 600, 2048), ((), ("suffix",), ("model", "suffix"), ("tree",)), (2, 16), (False, True)
    )
]


def bounds_of(wanted: Choice) -> Iterator[Bounds]:
    windows = [()] if wanted.context < 600 or not MODELS & {*wanted.drafters} else [(), (wanted.context // 2, 64)]
    for fixed_context, keeps, read, draft in product((False, True), (False, True), (False, True), windows):
        least = wanted.context if fixed_context else min(512, wanted.context)
        yield Bounds(models=MODELS, least_context=least, keeps_drafters=keeps, may_skip_mmap=read, draft_contexts=draft)


def limits_of(wanted: Choice, bounds: Bounds) -> list[int]:
    """Return limits around each size at which a plan changes, and limits between them."""
    free = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=None)
    marks = {nbytes_of(wanted), free.least_running, free.least_speculating or 0, 1}
    return sorted({max(1, mark + step) for mark in marks for step in (-1, 0, 1)} | set(range(500, 14_000, 2003)))


@cache
def plans() -> list[tuple[Choice, Bounds, list[MemoryPlan]]]:
    """Return the plans of the grid, grouped by requested choice and bounds, smaller limits first."""

    def plans_of(wanted: Choice, bounds: Bounds) -> list[MemoryPlan]:
        limits = limits_of(wanted, bounds)
        return [fit(wanted, bounds=bounds, holders=holders, limit_nbytes=each) for each in limits]

    return [(wanted, bounds, plans_of(wanted, bounds)) for wanted in WANTED for bounds in bounds_of(wanted)]


def test_plan_fits_every_limit_from_the_smallest_on() -> None:
    """A plan fits exactly if its limit is at least the reported smallest one, and its size is as reported."""
    checked = 0
    for wanted, _, several in plans():
        for plan in several:
            assert plan.fits == (plan.limit_nbytes >= plan.least_running)
            assert plan.nbytes == nbytes_of(plan.choice)
            assert plan.nbytes + sum(cut.nbytes for cut in plan.cuts) <= nbytes_of(wanted)
            checked += 1
    assert checked > 2000


def test_plan_that_fits_in_full_cuts_nothing() -> None:
    for wanted, bounds, several in plans():
        assert fit(wanted, bounds=bounds, holders=holders, limit_nbytes=None).choice == wanted
        for plan in several:
            if nbytes_of(wanted) <= (plan.limit_nbytes or 0):
                assert (plan.choice, plan.cuts) == (wanted, ())
            else:
                assert plan.choice != wanted or not plan.fits


def test_plan_cuts_only_within_its_bounds() -> None:
    for wanted, bounds, several in plans():
        for plan in several:
            choice = plan.choice
            assert bounds.least_context <= choice.context <= wanted.context
            assert choice.kv_type == wanted.kv_type
            assert choice.draft_max in (wanted.draft_max, 0)
            assert bounds.may_skip_mmap or not choice.no_mmap
            assert choice.draft_context in (0, *bounds.draft_contexts)
            assert choice.draft_context == 0 or MODELS & {*choice.drafters}
            if bounds.keeps_drafters:
                kept = ("drafters", "draft_max", "tree")
                assert [getattr(choice, name) for name in kept] == [getattr(wanted, name) for name in kept]


def test_plan_of_a_larger_limit_keeps_at_least_as_much() -> None:
    for _, _, several in plans():
        for less, more in pairwise(several):
            assert more.nbytes >= less.nbytes or not less.fits
            assert set(more.choice.drafters) >= set(less.choice.drafters)
            if more.choice.drafters == less.choice.drafters:  # more drafters may mean a shorter context
                assert more.choice.context >= less.choice.context


def test_plan_names_the_smallest_limits_for_running_and_speculating() -> None:
    for wanted, bounds, several in plans():
        plan = several[0]
        at = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=plan.least_running)
        below = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=plan.least_running - 1)
        assert (at.fits, below.fits) == (True, False)
        if plan.least_speculating is not None:
            at = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=plan.least_speculating)
            below = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=plan.least_speculating - 1)
            assert at.fits
            assert at.choice.drafters != ()
            assert not (below.fits and below.choice.drafters)
        else:
            assert not wanted.drafters


def test_plan_lists_a_cut_for_every_changed_field() -> None:
    """One line per field, in the order of the cuts; fields that depend on the drafters have no line of their own."""
    order = ("memory-mapped", "the draft model's context", "drafts by", "context")
    for wanted, _, several in plans():
        for plan in several:
            changed = {f.name for f in fields(Choice) if getattr(plan.choice, f.name) != getattr(wanted, f.name)}
            changed -= {"draft_max"}
            assert len(plan.cuts) == len(changed)
            places = [next(i for i, word in enumerate(order) if cut.what.startswith(word)) for cut in plan.cuts]
            assert places == sorted(places)


@pytest.mark.parametrize(
    ("limit", "cuts"),
    [
        (12_050, []),
        (12_000, ["the draft model's context beyond 1024 tokens"]),
        (11_000, ["the draft model's context beyond 512 tokens"]),
        (10_000, ["drafts by model"]),
        (9_700, ["drafts by model"]),
        (9_600, ["drafts by model"]),
        (9_000, ["drafts by model", "context beyond 1856 tokens"]),
        (1_000, ["drafts by model, suffix", "context beyond 512 tokens"]),
    ],
)
def test_plan_of_a_usual_session_cuts_step_by_step(limit: int, cuts: list[str]) -> None:
    wanted = Choice(context=2048, drafters=("model", "suffix"), draft_max=16)
    bounds = Bounds(models=MODELS, draft_contexts=(1024, 512))
    plan = fit(wanted, bounds=bounds, holders=holders, limit_nbytes=limit)
    assert [cut.what for cut in plan.cuts] == cuts


@pytest.mark.parametrize(
    ("nbytes", "limit", "drafters", "window"),
    [
        ({"trim": 30, "model": 20}, 2080, ("trim", "suffix"), 0),
        ({"trim": 30, "model": 20}, 1054, ("trim", "suffix"), 1024),
        ({"trim": 600, "model": 20}, 1054, ("model", "suffix"), 1024),
        ({"trim": 20, "model": 600}, 1054, ("trim", "suffix"), 1024),
        ({"trim": 600, "model": 20}, 2070, ("trim", "suffix"), 1024),
        ({"trim": 600, "model": 600}, 1054, ("suffix",), 0),
    ],
    ids=str,
)
def test_plan_cuts_the_trimmed_draft_to_the_full_one_to_none(
    nbytes: dict[str, int], limit: int, drafters: tuple[str, ...], window: int
) -> None:
    """Each is tried by what it needs, also with shorter contexts: the trimmed draft may need more or less memory."""

    def held(choice: Choice) -> list[Holder]:
        models = [name for name in choice.drafters if name in nbytes]
        return [Holder(name, nbytes[name] + (choice.draft_context or choice.context)) for name in models]

    wanted = Choice(context=2048, drafters=("trim", "suffix"), draft_max=16)
    bounds = Bounds(models=frozenset(nbytes), draft_contexts=(1024, 512), instead="model")
    plan = fit(wanted, bounds=bounds, holders=held, limit_nbytes=limit)
    assert (plan.choice.drafters, plan.choice.draft_context) == (drafters, window)
    assert ("model drafts instead" in [cut.effect for cut in plan.cuts]) == (drafters[0] == "model")
