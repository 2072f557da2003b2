"""How often the scheduler asks lookups that cost much to ask, on simulated machines."""

import pytest

from edgedecode.decoding.policy import NO_DRAFTER, Offer, RoundCost, Signals
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.ledger import INCOME
from edgedecode.schedule.scheduler import MOST_REST
from tests.virtual import STEP, Accepts, Machine, always, never, scheduler, simulate


@pytest.mark.parametrize(("host", "asking"), [(0.0005, 0.012), (0.005, 0.01), (0.03, 0.1)])
def test_scheduler_asks_ever_less_often_when_no_draft_is_profitable(host: float, asking: float) -> None:
    found = simulate(scheduler(), tokens=2000, machine=Machine(host=host, asking=asking), free=never)
    asked = sum(isinstance(call, Signals) for call in found.calls)
    assert asked * asking <= 2000 * (INCOME / 2 + asking / (1 + MOST_REST)) + MOST_REST * asking
    costs = [call for call in found.calls if isinstance(call, RoundCost)]
    assert any(cost.repeats and cost.drafter == NO_DRAFTER for cost in costs)
    assert len(found.rounds) == sum(1 + cost.repeats for cost in costs), "every round is reported, at least as a count"


@pytest.mark.parametrize("drafters", [{"free": never}, {"free": never, "model": never}], ids="+".join)
def test_where_asking_costs_more_than_a_pass_a_first_answer_asks_twice_at_most(drafters: dict[str, object]) -> None:
    """As with a target of 10M parameters, whose pass takes 0.2 ms."""
    machine = Machine(row=0.15, draft=0.4, read=0.01, host=0.1, asking=1.5)
    found = simulate(scheduler(), tokens=96, machine=machine, pace=0.0002 / STEP, **drafters)  # type: ignore[arg-type]
    assert sum(isinstance(call, Signals) for call in found.calls) <= 2
    assert all(name == NO_DRAFTER for _, name, _, _ in found.rounds)


@pytest.mark.parametrize(("right", "rests"), [(always, False), (never, True)])
def test_an_answer_begins_with_the_model_that_pays_however_dear_lookups_are_to_ask(right: Accepts, rests: bool) -> None:
    """As an MTP layer's, over answers of few tokens. A session of its own for each, which know of each other."""
    known, machine = Experience(), Machine(row=0.05, draft=0.1, read=0.001, asking=0.1)
    drafters: dict[str, Accepts] = {"free": never, "model": right}
    for _ in range(8):
        simulate(scheduler(known), tokens=28, machine=machine, **drafters)  # type: ignore[arg-type]
    assert (scheduler(known).begin() > 0) == rests
    found = simulate(scheduler(known), tokens=28, machine=machine, **drafters)  # type: ignore[arg-type]
    assert (found.rounds[0][1] == "model") != rests


def test_the_gains_of_lookups_pay_for_asking_them_again() -> None:
    """They are asked in every round until what they gained in this answer is spent, and then as rarely as before."""
    asking, machine = 0.04, Machine(row=0.05, asking=0.04)
    known = Experience()
    simulate(scheduler(known), tokens=300, machine=machine, free=never)
    lookups, nothing = scheduler(known), Signals(context_tokens=40, remaining_tokens=1000)
    lookups.begin()
    assert lookups.plan(nothing).rest > 0
    copied = lookups.plan(Signals(40, 1000, offers=(Offer("free", 4, match=20),)))
    assert copied.drafter == "free"
    round_seconds = machine.c(1 + copied.draft_max) * STEP
    lookups.observe(
        RoundCost(
            width=1 + copied.draft_max,
            pass_seconds=round_seconds,
            host_seconds=(machine.host + asking) * STEP,
            drafter="free",
            drafted=copied.draft_max,
            accepted=copied.draft_max,
        )
    )
    gained = copied.draft_max - machine.row * copied.draft_max
    asked = 0
    while not lookups.plan(nothing).rest:
        asked += 1
    assert 0.5 * gained <= asked * asking <= 1.5 * gained
    lookups.begin()
    assert lookups.plan(nothing).rest > 0, "gains of an earlier answer do not count"
