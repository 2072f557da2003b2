"""The scheduler on a machine without noise: it may lose almost nothing where drafts fail, and takes what they give."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from edgedecode.decoding.policy import NO_DRAFTER, FixedLength, Offer, Plan, RoundCost, Signals
from edgedecode.errors import InputError
from edgedecode.schedule.cost import CostModel
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.model_arm import ArmLife, ModelArm
from edgedecode.schedule.scheduler import MOST_REST, REMEASURE, Scheduler, SchedulerOptions
from tests.virtual import Machine, Ride, always, never, ride

SLOW = Machine(row=0.45, draft=0.2, read=0.1)
"""Two old cores: every row is dear, and so is the draft model."""
FAST = Machine(row=0.17, draft=0.06, read=0.02)
MACHINES = [SLOW, Machine(), FAST]


def scheduler(experience: Experience | None = None, **options: int) -> Scheduler:
    return Scheduler(
        free=["free"], models=["model"], experience=experience, options=SchedulerOptions(**options) if options else None
    )


def some(share: float, seed: int = 0) -> object:
    rng = random.Random(seed)
    right = [rng.random() < share for _ in range(10_000)]
    return right.__getitem__


def plain_cost(tokens: int, machine: Machine) -> float:
    """Return what plain decoding takes: the first token came with the prompt."""
    return (tokens - 1) * (1 + machine.host)


def best_fixed(tokens: int, machine: Machine, **drafters: object) -> float:
    """Return the least cost of any fixed drafter and length, in hindsight."""

    class Fixed:
        def __init__(self, name: str, length: int) -> None:
            self.name, self.length = name, length

        def plan(self, signals: Signals) -> Plan:
            return Plan(self.length, self.name)

    lengths = (1, 2, 3, 4, 6, 8, 12, 16)
    rides = [
        ride(Fixed(name, length), tokens=tokens, machine=machine, **drafters).cost  # type: ignore[arg-type]
        for name in drafters
        if name in ("free", "model")
        for length in lengths
    ]
    return min([*rides, plain_cost(tokens, machine)])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafters", [{"model": never}, {"free": never}, {"model": never, "free": never}], ids=str)
def test_hostile_drafts_cost_next_to_nothing(machine: Machine, drafters: dict[str, object]) -> None:
    found = ride(scheduler(), tokens=256, machine=machine, **drafters)  # type: ignore[arg-type]
    assert plain_cost(256, machine) / found.cost >= 0.97
    late = [entry for entry in found.rounds if entry[0] >= 64]
    extra = sum(
        machine.c(1 + drafted) - 1 + (machine.draft if name == "model" else 0) * drafted for _, name, drafted, _ in late
    )
    assert 192 / (192 + extra) >= 0.99


def test_generations_that_alternate_keep_their_own_rounds_and_share_what_lasts() -> None:
    known = Experience()
    first, second = scheduler(known), scheduler(known)
    first.plan(Signals(round=1, context_tokens=10, remaining_tokens=100))
    arm = first.models["model"]
    arm.on, arm.wait = False, 40
    for _ in range(3):
        arm.add(2, 1.5)
    before = replace(arm)
    second.plan(Signals(round=1, context_tokens=10, remaining_tokens=100))
    assert arm == before
    second.models["model"].add(3, 1.0)
    assert arm.rounds == 3
    assert arm.life.scored == 4
    assert known.as_dict()["arms"]["model"]["scored"] == 4  # type: ignore[index]


def settled(machine: Machine, share: float, name: str) -> tuple[float, float]:
    """Return the best fixed length's time over the scheduler's, and plain's, once it knows the machine and the pair."""
    known = Experience()
    ride(scheduler(known), tokens=3000, machine=machine, **{name: some(share, seed=1)})  # type: ignore[arg-type]
    texts = [some(share, seed) for seed in range(5)]
    cost = sum(ride(scheduler(known), tokens=400, machine=machine, **{name: text}).cost for text in texts)  # type: ignore[arg-type]
    return sum(best_fixed(400, machine, **{name: text}) for text in texts) / cost, 5 * plain_cost(400, machine) / cost


@pytest.mark.parametrize("name", ["free", "model"])
@pytest.mark.parametrize("machine", MACHINES)
def test_it_comes_near_the_best_fixed_length_in_hindsight(machine: Machine, name: str) -> None:
    found = [settled(machine, share, name) for share in (1.0, 0.9, 0.75, 0.5, 0.3)]
    assert sum(best for best, _ in found) / len(found) >= 0.93
    assert min(best for best, _ in found) >= 0.8
    assert min(plain for _, plain in found) >= 0.98


def test_drafts_that_are_always_right_become_long() -> None:
    found = ride(scheduler(draft_max=16), tokens=300, machine=FAST, free=always)
    assert max(drafted for _, _, drafted, _ in found.rounds) == 16
    assert len(found.rounds) < 300 / 8


@pytest.mark.parametrize("machine", [Machine(), FAST])
def test_off_within_sixteen_rounds_and_back_within_sixty_four_tokens_for_free_drafters(machine: Machine) -> None:
    def right(place: int) -> bool:
        return not 150 <= place < 400

    found = ride(scheduler(), tokens=600, machine=machine, free=right, prompt=0)
    bad = [entry for entry in found.rounds if 150 <= entry[0] < 400]
    assert not [entry for entry in bad[16:] if entry[2]]
    back = [place for place in found.used("free") if place >= 400]
    assert back[0] <= 464


@pytest.mark.parametrize("machine", [Machine(), FAST])
def test_off_within_sixteen_rounds_and_back_within_512_tokens_for_the_model(machine: Machine) -> None:
    def right(place: int) -> bool:
        return not 200 <= place < 700

    found = ride(scheduler(), tokens=2000, machine=machine, model=right, prompt=0)
    bad = [entry for entry in found.rounds if 200 <= entry[0] < 700]
    drafted = [index for index, entry in enumerate(bad) if entry[2]]
    probes = [index for index in drafted if index >= 16]
    assert len(probes) <= 15  # three rounds after 16, 32, 64, 128 and 256 tokens
    accepted = [place for place, _, _, accepted in found.rounds if accepted and place >= 700]
    assert accepted[0] <= 700 + 512
    late = [entry for entry in found.rounds if entry[0] >= 1300]
    assert sum(accepted > 0 for _, _, _, accepted in late) > 0.9 * len(late)


def test_asking_what_a_model_promises_changes_nothing_and_the_arm_that_is_chosen_pays() -> None:
    """An arm that is off is asked in every round; only a round that takes it begins a probe and is charged."""
    arm, costs = ModelArm("model", ArmLife(), on=False), CostModel()
    before = asdict(arm)
    uses = [arm.use(8, costs=costs, context_tokens=64, remaining_tokens=100) for _ in range(3)]
    assert uses[0] is not None
    assert uses[0].probe is not None
    assert uses == [uses[0]] * 3
    assert asdict(arm) == before
    arm.begin_probe(uses[0].probe)
    assert (arm.on, arm.life.probed) == (True, uses[0].probe.price)


def test_a_probe_that_loses_to_another_arm_is_not_charged() -> None:
    made = scheduler()
    ride(made, tokens=40, machine=FAST, model=always, free=always)
    arm = made.models["model"]
    arm.on, arm.wait, arm.probing = False, 0, 0
    before = arm.life.probed
    signals = Signals(
        round=9, context_tokens=64, remaining_tokens=200, offers=(Offer("free", 8, 8),), unread=(("model", 4),)
    )
    assert arm.use(4, costs=made.costs, context_tokens=64, remaining_tokens=200) is not None
    assert made.plan(signals).drafter == "free"
    assert (arm.on, arm.probing, arm.life.probed) == (False, 0, before)


def test_a_model_is_not_read_for_a_few_tokens() -> None:
    machine = Machine(row=0.35, draft=0.15, read=0.1)
    known = Experience()
    ride(scheduler(known), tokens=300, machine=machine, model=some(0.7), prompt=8)  # type: ignore[arg-type]
    found = ride(scheduler(known), tokens=6, machine=machine, model=some(0.7), prompt=400)  # type: ignore[arg-type]
    assert not found.used("model")
    long = ride(scheduler(known), tokens=300, machine=machine, model=some(0.9), prompt=400)  # type: ignore[arg-type]
    assert long.used("model")


def test_costs_that_were_wrongly_known_are_found_out_by_the_clock() -> None:
    class Lying(Scheduler):
        def _learn(self, cost: RoundCost) -> None:
            super()._learn(cost)
            self.costs.table(1).beta[2:20] = 0.0  # wide passes are free, it believes
            self.costs.table(1).forget_curve()

    lying = Lying(free=["free"])
    found = ride(lying, tokens=300, machine=Machine(row=1.5), free=some(0.4), prompt=0)  # type: ignore[arg-type]
    assert "measured slower" in {plan.reason for plan in found.plans}
    assert len(found.used("free")) < len(found.rounds) / 2


def test_the_same_signals_make_the_same_plans() -> None:
    found = ride(scheduler(), tokens=300, free=some(0.5), model=some(0.7))  # type: ignore[arg-type]
    again = scheduler()
    signals = [Signals.from_dict(json.loads(json.dumps(asdict(each)))) for each in found.signals]
    assert [again.plan(each) for each in signals] == found.plans
    assert {plan.drafter for plan in found.plans} >= {"free", "model"}


def test_what_was_learnt_survives_json() -> None:
    known = Experience()
    ride(scheduler(known), tokens=300, free=some(0.5), model=some(0.7))  # type: ignore[arg-type]
    copy = Experience.from_dict(json.loads(json.dumps(known.as_dict())))
    assert copy.as_dict() == known.as_dict()
    rides: list[Ride] = [
        ride(scheduler(each), tokens=200, free=some(0.5), model=some(0.7))
        for each in (known, copy)  # type: ignore[arg-type]
    ]
    assert rides[0].plans == rides[1].plans


@pytest.mark.parametrize("length", [0, 65])
def test_longest_drafts_out_of_range_are_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"draft length {length} is out of range: 1 to 64"):
        SchedulerOptions(draft_max=length)


@pytest.mark.parametrize(("host", "asking"), [(0.0005, 0.012), (0.005, 0.01), (0.03, 0.1)])
def test_asking_in_vain_comes_to_rest_whatever_it_costs(host: float, asking: float) -> None:
    found = ride(scheduler(), tokens=2000, machine=Machine(host=host, asking=asking), free=never)
    late = [name for place, name, _, _ in found.rounds if place >= 200]
    assert late.count(NO_DRAFTER) >= 0.5 * len(late)
    costs = [cost for each in found.signals for cost in each.costs]
    assert any(cost.repeats for cost in costs)
    assert 0 <= len(found.rounds) - sum(1 + cost.repeats for cost in costs) <= 1 + MOST_REST


def test_rounds_of_a_rest_that_are_only_counted_bring_the_next_measurement_nearer() -> None:
    found = ride(scheduler(), tokens=2000, free=never)
    drafted = [place for place in found.used("free") if place >= 300]
    gaps = [after - before for before, after in pairwise(drafted)]
    assert len(gaps) >= 3
    assert all(REMEASURE < gap <= REMEASURE + MOST_REST + 2 for gap in gaps), gaps


def test_fixed_lengths_need_no_scheduler() -> None:
    found = ride(FixedLength(0), tokens=20)
    assert found.cost == pytest.approx(plain_cost(20, Machine()))
