"""Heads of one draft model: one arm, which takes the head that promises most and looks at the others now and then."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from edgedecode.decoding.counterfactual import would_have
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft, TrimmedVocabulary
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.policy import Plan, RoundCost, Score, Signals
from edgedecode.decoding.sampling import Noise, Sampler
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.decoding.weights import SamplingOptions
from edgedecode.drafters.model import ModelDrafter, ModelSource
from edgedecode.drafters.trim import TrimSource
from edgedecode.schedule.cost import CostModel
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.head_arms import FIRST_ROUNDS, TURN, Variants
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.schedule.trace import Recorder, replay
from tests.toys import draft_setting, headed_model, run, toy_model
from tests.virtual import Accepts, Machine, Ride, never, ride

FAST = Machine(row=0.17, draft=0.1, read=0.02)
HEADS = [["trim", "model"]]


def some(share: float, seed: int = 0) -> Accepts:
    rng = random.Random(seed)
    right = [rng.random() < share for _ in range(10_000)]
    return right.__getitem__


def drive(model: Accepts, trim: Accepts, *, tokens: int = 600, machine: Machine = FAST) -> Ride:
    scheduler = Scheduler(models=["trim", "model"], heads=HEADS)
    return ride(scheduler, tokens=tokens, machine=machine, model=model, trim=trim)


def counted(found: Ride, *, after: int = 0) -> Counter[str]:
    return Counter(name for place, name, drafted, _ in found.rounds if drafted and place >= after)


def test_the_cheaper_head_drafts_where_it_says_the_same() -> None:
    accepts = some(0.8)
    drafted = counted(drive(accepts, accepts), after=60)
    assert drafted["trim"] > 20 * drafted["model"]


def test_the_whole_head_drafts_where_the_text_is_not_in_the_trimmed_vocabulary() -> None:
    outside = some(0.45, seed=1)
    accepts = some(0.8)
    drafted = counted(drive(accepts, lambda place: accepts(place) and not outside(place)), after=100)
    assert drafted["model"] > 20 * drafted["trim"]


def test_choosing_between_heads_costs_little_of_the_better_one() -> None:
    machines = [FAST, replace(FAST, trimmed=0.9), Machine(row=0.17, draft=0.2, read=0.02)]
    shares = [over_the_better_one(machine, lacking) for machine in machines for lacking in (0.0, 0.02, 0.1, 0.3)]
    assert max(shares) <= 1.035
    assert mean(shares) <= 1.015


def over_the_better_one(machine: Machine, lacking: float) -> float:
    """Return what both heads take over what the better one alone takes, where one lacks a share of the tokens."""
    outside, accepts = some(lacking, seed=2), some(0.85, seed=3)

    def trimmed(place: int) -> bool:
        return accepts(place) and not outside(place)

    alone = [
        ride(Scheduler(models=["model"]), tokens=1500, machine=machine, model=accepts),
        ride(Scheduler(models=["trim"]), tokens=1500, machine=machine, trim=trimmed),
    ]
    return drive(accepts, trimmed, tokens=1500, machine=machine).cost / min(found.cost for found in alone)


def test_hostile_heads_are_one_arm_and_go_off_as_one() -> None:
    one = ride(Scheduler(models=["model"]), tokens=256, machine=FAST, model=never)
    two = drive(never, never, tokens=256)
    assert len(two.used("model")) + len(two.used("trim")) <= len(one.used("model")) + 1
    assert two.cost <= 1.01 * one.cost


def test_a_head_that_was_never_timed_is_tried_first_and_counts_as_its_arm_until_then() -> None:
    costs = CostModel()
    variants = Variants([*HEADS, ["tree"]], costs)
    assert variants.arm_of("model") == variants.arm_of("trim") == "trim"
    assert variants.arm_of("suffix") is None
    round_cost = RoundCost(1, 0.01)
    for _ in range(8):
        costs.observe(round_cost, context_tokens=10)
    costs.observe(RoundCost(2, 0.01, drafter="model", drafted=1, read=1, draft_seconds=0.003), context_tokens=10)
    assert variants.d("trim", costs, 10) == variants.d("model", costs, 10) == pytest.approx(0.3)
    variants = Variants(HEADS, costs)  # the model is known now
    for _ in range(FIRST_ROUNDS):
        assert variants.choose("trim", lambda name: 1.0) == "trim"
        variants.used("trim")
    worth = {"model": 2.0, "trim": 1.0}.__getitem__
    chosen = []
    for _ in range(2 * TURN):
        chosen.append(variants.choose("trim", worth))
        variants.used(chosen[-1])
    assert 1 <= chosen.count("trim") <= 2


def test_reading_is_learnt_for_all_heads_by_whoever_reads() -> None:
    costs = CostModel()
    Variants(HEADS, costs)
    costs.observe(RoundCost(1, 0.01), context_tokens=10)
    costs.observe(RoundCost(2, 0.01, drafter="trim", drafted=1, read=10, draft_seconds=0.02), context_tokens=10)
    assert costs.drafts["model"].read.seconds == costs.drafts["trim"].read.seconds == pytest.approx(0.002)
    again = CostModel.from_dict(costs.as_dict())
    Variants(HEADS, again)
    assert again.drafts["model"].read is again.drafts["trim"].read


def test_a_trace_with_heads_replays(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace.jsonl"
    accepts = some(0.8)
    recorder = Recorder(Scheduler(models=["trim", "model"], heads=HEADS, experience=Experience()), path, pack="p")
    ride(recorder, tokens=300, machine=FAST, model=accepts, trim=some(0.7, seed=5))
    recorder.close()
    found = list(replay(path, pack="p"))
    assert len(found) > 50
    assert all(each.plan == each.recorded for each in found)
    assert {each.plan.drafter for each in found if each.plan.draft_max} == {"model", "trim"}


def verdict(draft: Draft, accepted: int, said: int) -> Verdict:
    outcome = Outcome.BONUS if accepted == len(draft) else Outcome.CORRECTION
    return Verdict(draft, (*draft.tokens[:accepted], said), tuple(range(accepted)), outcome, rows=None)  # type: ignore[arg-type]


KEPT = TrimmedVocabulary(np.array([1, 2, 3]), 10)
WHOLE, TRIMMED = Draft((1, 7, 2)), Draft((1, 2, 3), vocabulary=KEPT)


@pytest.mark.parametrize(
    ("drafted", "accepted", "said", "head", "expected"),
    [
        (WHOLE, 3, 1, KEPT, (3, 1)),  # the trimmed head lacks 7
        (WHOLE, 1, 1, KEPT, (3, 1)),  # 7 was wrong, and so is whatever it would have said
        (WHOLE, 0, 7, KEPT, (3, 0)),
        (TRIMMED, 3, 1, None, (3, 3)),
        (TRIMMED, 1, 3, None, (3, 1)),  # it had 3, and thought another one likelier
        (TRIMMED, 1, 7, None, (1, 1)),  # it lacks 7: the whole head might have said it
        (TRIMMED, 1, 7, TrimmedVocabulary(np.array([1, 2]), 10), (3, 1)),  # this one could not either
    ],
)
def test_what_one_head_drafted_tells_what_another_one_would_have(
    drafted: Draft, accepted: int, said: int, head: TrimmedVocabulary | None, expected: tuple[int, int]
) -> None:
    assert would_have(verdict(drafted, accepted, said), head) == expected


@pytest.mark.parametrize("drafting", ["model", "trim"])
def test_what_is_told_of_a_head_is_what_it_really_would_have_drafted(drafting: str) -> None:
    size, kept = 20, (0, 2, 3, 5, 8, 9, 13, 17)
    target, made = toy_model(size, seed=4), headed_model(size, kept, seed=4, noise=0.3)
    setting = draft_setting(size, model=made)
    drafters = {"model": ModelSource().open(setting), "trim": TrimSource().open(setting)}
    other = drafters["trim" if drafting == "model" else "model"]
    truth = [1, 2, 3, *run(toy_model(size, seed=4), [1, 2, 3], max_tokens=120).tokens]
    found = run(target, [1, 2, 3], max_tokens=110, drafter=drafters[drafting], draft_max=4)
    place, told = 3, Counter[int]()
    for round_verdict in found.verdicts:
        if len(round_verdict.draft):
            assert isinstance(other, ModelDrafter)
            other.begin(truth[:place])
            length, accepted = would_have(round_verdict, other.vocabulary)
            real = other.propose(truth[:place], len(round_verdict.draft), Noise(0)).tokens[:length]
            assert accepted == next((at for at, token in enumerate(real) if token != truth[place + at]), len(real))
            told[accepted - round_verdict.accepted] += 1
        place += len(round_verdict.tokens)
    assert told.total() > 20
    assert drafting == "trim" or len(told) > 1  # the trimmed head would have done worse somewhere


def test_heads_that_do_not_draft_are_scored_all_the_same() -> None:
    size = 20
    setting = draft_setting(size, model=headed_model(size, (0, 2, 3, 5, 8, 9, 13, 17), seed=4, noise=0.3))
    whole = ModelSource().open(setting)
    trim = TrimSource().open(replace(setting, opened={"model": whole}))
    policy = Always(Plan(3, "model"))
    drafting = Drafting([whole, trim], policy, noise=Noise(0, stream=1), offers=True)
    target, tokens = toy_model(size, seed=4), [1, 2, 3]
    loop = DecodeSetting(sampler=Sampler(SamplingOptions(), vocabulary_size=size), noise=Noise(0), drafting=drafting)
    stats = Stats()
    for _ in decode(target, target.new_state(100), tokens=tokens, max_tokens=40, setting=loop, stats=stats):
        pass
    drafting.close()
    assert {score.drafter for score in policy.scores} == {"trim"}
    assert len(policy.scores) == stats.drafters["model"].rounds
    assert sum(score.accepted for score in policy.scores) < stats.accepted


class Always:
    """Plans the same, and keeps the scores it is told."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.scores: list[Score] = []

    def plan(self, signals: Signals) -> Plan:
        self.scores += signals.scores
        return self._plan
