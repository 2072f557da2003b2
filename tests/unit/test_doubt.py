"""False memories: after any of them the scheduler is right again within one answer, whatever was kept."""

import json
import random
from collections.abc import Callable
from functools import cache

import pytest

from edgedecode.decoding.policy import FixedLength
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import MISSED, PROBING, Scheduler
from tests.virtual import Accepts, Machine, Simulation, always, simulate

TOKENS = 256
IDLE = Machine(row=0.12, draft=0.1, read=0.02)
COSTLY = Machine(row=0.8, draft=0.5, read=0.1)
"""A machine on which nothing pays that is right half the time."""


@cache
def some(share: float, seed: int = 0) -> Accepts:
    rng = random.Random(seed)
    right = [rng.random() < share for _ in range(10_000)]
    return right.__getitem__


def scheduler(known: Experience) -> Scheduler:
    return Scheduler(free=["free"], models=["model"], experience=known)


@cache
def remembered(machine: Machine) -> str:
    """Return what a process keeps that was often right on this machine."""
    known = Experience()
    for seed in range(3):
        simulate(scheduler(known), tokens=TOKENS, machine=machine, free=some(0.9, seed), model=some(0.9, seed))
    return json.dumps(known.as_dict())


def kept(machine: Machine, *, falsified: Callable[[dict[str, object]], None]) -> Experience:
    """Return what a process loads that kept a false memory of this machine."""
    memory = json.loads(remembered(machine))
    falsified(memory)
    found = Experience.from_dict(memory)
    found.doubt()
    return found


def steps(factor: float) -> Callable[[dict[str, object]], None]:
    def falsify(memory: dict[str, object]) -> None:
        for table in memory["tables"].values():  # type: ignore[attr-defined]
            table["step"] *= factor

    return falsify


def rows(factor: float) -> Callable[[dict[str, object]], None]:
    def falsify(memory: dict[str, object]) -> None:
        for table in memory["tables"].values():  # type: ignore[attr-defined]
            table["beta"] = {width: beta * factor for width, beta in table["beta"].items()}

    return falsify


def drafting(factor: float) -> Callable[[dict[str, object]], None]:
    def falsify(memory: dict[str, object]) -> None:
        for draft in memory["drafts"].values():  # type: ignore[attr-defined]
            draft["step"] *= factor
            draft["read"] = (draft["read"] or 0.0) * factor
        memory["host"] = {name: cost * factor for name, cost in memory["host"].items()}  # type: ignore[attr-defined]

    return falsify


def balances(value: float) -> Callable[[dict[str, object]], None]:
    def falsify(memory: dict[str, object]) -> None:
        memory["balances"] = dict.fromkeys(("free", "model"), value)

    return falsify


def accepted(share: float) -> Callable[[dict[str, object]], None]:
    def falsify(memory: dict[str, object]) -> None:
        for counts in memory["history"].values():  # type: ignore[attr-defined]
            counts["accepted"] = [tried * share for tried in counts["tried"]]

    return falsify


def everything(memory: dict[str, object]) -> None:
    for falsify in (rows(5), drafting(5), balances(-0.25), accepted(0.0)):
        falsify(memory)


MEMORIES = {
    "slow steps": steps(5),
    "fast steps": steps(0.2),
    "dear rows": rows(5),
    "cheap rows": rows(0.2),
    "dear drafts": drafting(5),
    "cheap drafts": drafting(0.2),
    "empty balances": balances(-0.25),
    "full balances": balances(12.0),
    "never accepted": accepted(0.0),
    "always accepted": accepted(1.0),
    "everything dear": everything,
}


def answered(known: Experience, machine: Machine, seed: int, **drafters: Accepts) -> Simulation:
    return simulate(scheduler(known), tokens=TOKENS, machine=machine, seed=seed, **drafters)


def texts(free: float | None, model: float | None, seed: int) -> dict[str, Accepts]:
    """Return where each drafter is right."""
    shares = {"free": free, "model": model}
    return {drafter: some(share, seed) for drafter, share in shares.items() if share is not None}


@cache
def new_cost(machine: Machine, free: float | None, model: float | None, seed: int) -> float:
    """Return what an answer costs with a new cache."""
    return answered(Experience(), machine, seed, **texts(free, model, seed)).cost


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize(
    ("machine", "free", "model"),
    [(IDLE, 0.95, None), (IDLE, None, 0.9), (IDLE, 0.8, 0.8), (COSTLY, 0.4, 0.4), (IDLE, 0.0, 0.0), (COSTLY, 0.9, 0.0)],
)
def test_answer_after_a_false_memory_takes_as_long_as_with_a_new_cache(
    name: str, machine: Machine, free: float | None, model: float | None
) -> None:
    new = found = 0.0
    for seed in range(10, 16):
        new += new_cost(machine, free, model, seed)
        known = kept(machine, falsified=MEMORIES[name])
        found += answered(known, machine, seed, **texts(free, model, seed)).cost
    assert found <= 1.05 * new, f"{found / new:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize("spikes", [0.0, 0.1])
@pytest.mark.parametrize(("free", "model"), [(0.95, None), (None, 0.9), (0.8, 0.8), (0.0, 0.0)])
@pytest.mark.parametrize("again", [False, True], ids=["same process", "next process"])
def test_answer_after_one_beside_other_work_takes_as_long_as_with_a_new_cache(
    spikes: float, free: float | None, model: float | None, again: bool
) -> None:
    new = found = 0.0
    busy = Machine(row=1.2, draft=1.0, read=0.2, spikes=spikes)
    for seed in range(10, 16):
        right, known = texts(free, model, seed), Experience()
        simulate(scheduler(known), tokens=TOKENS, machine=busy, pace=2, seed=seed, **right)
        if again:
            known = Experience.from_dict(known.as_dict())
            known.doubt()
        new += new_cost(IDLE, free, model, seed)
        found += answered(known, IDLE, seed, **right).cost
    assert found <= 1.05 * new, f"{found / new:.3f}"


def test_lookup_that_would_be_right_is_drafted_again_within_an_answer_whatever_this_process_measured() -> None:
    """Only passes over several rows were slow, so nothing else shows that the other work has ended."""
    known = Experience()
    simulate(scheduler(known), tokens=TOKENS, machine=Machine(row=1.2), free=always)
    known.ledger.balances["free"] = -0.25
    found = answered(known, IDLE, 1, free=always)
    first, *later = [plan.reason for plan in found.plans if plan.draft_max]
    assert (first, {*later}) == (PROBING, {"speed-up expected"})
    assert found.used("free")[0] <= 2 * MISSED
    assert len(found.rounds) < TOKENS / 3


def test_lookups_that_do_not_pay_are_probed_ever_more_rarely() -> None:
    machine, known = Machine(row=2.5), Experience()
    found = simulate(scheduler(known), tokens=1000, machine=machine, free=always)
    probes = [place for place, _, drafted, _ in found.rounds if drafted]
    assert len(probes) <= 16
    assert found.cost <= 1.05 * simulate(FixedLength(0), tokens=1000, machine=machine).cost
