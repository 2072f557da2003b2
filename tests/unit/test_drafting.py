"""The drafting side of the loop: who is asked when, what the policy is told, and what a round is charged to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import ASKED, NO_DRAFTER, NO_SPEED_UP, WHOLE, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.errors import CapabilityError, InputError
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from tests.toys import GREEDY, CallDrafter


class Scripted:
    """A policy that says what it was given, and keeps what it was told."""

    def __init__(self, *plans: Plan, rest: int = 0) -> None:
        self.plans = list(plans)
        self.rest = rest
        self.shown: list[Signals] = []
        self.costs: list[RoundCost] = []
        self.scores: list[tuple[Score, ...]] = []

    def begin(self, adapter: str = "") -> int:
        return self.rest

    def plan(self, signals: Signals) -> Plan:
        self.shown.append(signals)
        return self.plans.pop(0) if self.plans else Plan(0)

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        self.costs.append(cost)
        self.scores.append(tuple(scores))


class Slow(CallDrafter):
    """A drafter with a model of its own, three tokens behind."""

    name = "slow"
    free = False
    plans: Sequence[Plan] = ()

    def unread(self, context: Sequence[int]) -> int:
        return 3

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self.plans = [*self.plans, plan]
        return super().propose(context, limit, rng, plan)


def free(*tokens: int, name: str = "call", parents: tuple[int, ...] | None = None) -> CallDrafter:
    drafter = CallDrafter(lambda context, limit, rng: Draft(tokens, parents, source=name, match=2).cut(limit))
    drafter.name = name
    return drafter


def slow(*tokens: int) -> Slow:
    return Slow(lambda context, limit, rng: Draft(tokens, source="slow").cut(limit))


def drafting(
    policy: Scripted,
    *drafters: CallDrafter,
    offers: bool = True,
    chains_only: bool = False,
    clock: Callable[[], float] = perf_counter,
) -> Drafting:
    made = Drafting(drafters, policy, noise=Noise(0, stream=1), offers=offers, chains_only=chains_only, clock=clock)
    made.begin([1, 2])
    return made


def verdict(draft: Draft, *tokens: int) -> Verdict:
    import numpy as np

    rows: FloatArray = np.zeros((1 + len(draft), 9), np.float32)
    accepted = tuple(range(len(tokens) - 1))
    return Verdict(draft, tokens, accepted, Outcome.CORRECTION, TargetRows(rows, Sampler(GREEDY, vocabulary_size=9)))


def test_free_drafters_are_asked_before_the_plan_and_models_after_it() -> None:
    policy = Scripted(Plan(2, "slow", floor=0.25, read_max=7))
    quick, model = free(5, 6, 7), slow(5, 8, 8)
    made = drafting(policy, quick, model)
    assert made.propose([1, 2], room=10).tokens == (5, 8)
    assert policy.shown[0].offers == (Offer("call", 3, match=2),)
    assert policy.shown[0].unread == (("slow", 3),)
    assert [(plan.floor, plan.read_max) for plan in model.plans] == [(0.25, 7)]


def test_a_free_draft_is_cut_to_the_plan_and_to_the_room() -> None:
    made = drafting(Scripted(Plan(2, "call"), Plan(9, "call"), Plan(9, "call")), free(5, 6, 7))
    assert made.propose([1, 2], room=10).tokens == (5, 6)
    assert made.propose([1, 2], room=1).tokens == (5,)
    assert made.propose([1, 2], room=0).tokens == ()


def test_offers_are_scored_although_another_drafted() -> None:
    policy = Scripted(Plan(1, "slow"), Plan(0))
    made = drafting(policy, free(5, 6, 7), slow(5))
    tokens = [1, 2]
    draft = made.propose(tokens, room=10)
    tokens += [5, 9]
    made.observe(tokens, verdict(draft, 5, 9))
    made.spent(verdict(draft, 5, 9), pass_seconds=0.5, host_seconds=0.25)
    assert policy.scores == [(Score("call", 3, 1, match=2),)]


def test_a_round_is_charged_to_who_drafted_and_a_models_time_is_not_the_hosts() -> None:
    policy = Scripted(Plan(2, "slow"), Plan(0), Plan(0))
    ticks = iter((10.0, 10.125, 11.0, 11.5, 12.0, 12.0))  # drafting, and what the policy takes to learn, twice
    made = drafting(policy, slow(5, 6), clock=lambda: next(ticks))
    draft = made.propose([1, 2], room=10)
    made.observe([1, 2, 5], verdict(draft, 5))
    made.spent(verdict(draft, 5), pass_seconds=0.5, host_seconds=0.25)
    (cost,) = policy.costs
    assert (cost.drafter, cost.width, cost.drafted, cost.accepted, cost.read) == ("slow", 3, 2, 0, 3)
    assert (cost.draft_seconds, cost.host_seconds) == (0.125, 0.125)
    made.propose([1, 2, 5], room=9)
    made.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
    assert [(cost.drafter, cost.width, cost.host_seconds) for cost in policy.costs[1:]] == [(ASKED, 1, 0.1 + 0.5)]


def test_a_model_that_dropped_its_draft_is_charged_for_drafting() -> None:
    policy = Scripted(Plan(2, "slow"), Plan(0))
    made = drafting(policy, slow())
    draft = made.propose([1, 2], room=10)
    made.spent(verdict(draft, 7), pass_seconds=0.5, host_seconds=0.1)
    assert [(cost.drafter, cost.drafted, cost.width) for cost in policy.costs] == [("slow", 0, 1)]


@pytest.mark.parametrize(
    ("floor", "outcome", "stopped"),
    [(0.5, Outcome.BONUS, True), (0.5, Outcome.ENDED, False), (0.0, Outcome.BONUS, False)],
)
def test_a_draft_that_its_model_ended_is_charged_for_the_token_it_dropped(
    floor: float, outcome: Outcome, stopped: bool
) -> None:
    policy = Scripted(Plan(4, "slow", floor=floor))
    made = drafting(policy, slow(3, 4))
    draft = made.propose([1, 2], room=8)
    made.spent(Verdict(draft, (3, 4, 5), (0, 1), outcome, verdict(draft).rows), pass_seconds=0.1, host_seconds=0.1)
    (cost,) = policy.costs
    assert (cost.stopped, cost.steps) == (stopped, 2 + stopped)


def test_resting_asks_nobody_and_loses_no_cost() -> None:
    policy = Scripted(Plan(0, rest=2, reason=NO_SPEED_UP), Plan(0))
    quick = free(5)
    made = drafting(policy, quick)
    tokens = [1, 2]
    for token in (6, 7, 8):
        if made.asks():
            assert len(made.propose(tokens, room=10)) == 0
        assert made.plan.reason == NO_SPEED_UP
        tokens.append(token)
        if made.timed:
            made.spent(verdict(Draft(), token), pass_seconds=0.5, host_seconds=0.1)
    assert (len(quick.limits), len(policy.shown)) == (1, 1)
    assert made.asks()
    made.propose(tokens, room=10)
    assert (len(quick.limits), len(policy.shown)) == (2, 2)
    assert [(cost.drafter, cost.repeats) for cost in policy.costs] == [(ASKED, 0), (NO_DRAFTER, 1)]
    assert [score for scores in policy.scores for score in scores] == [Score("call", 1, 0, match=2)]


def test_an_answer_may_begin_at_rest() -> None:
    policy = Scripted(rest=2)
    made = drafting(policy, free(5))
    assert [made.asks() for _ in range(3)] == [False, False, True]
    assert made.plan.reason == NO_SPEED_UP


def test_without_offers_only_the_one_that_is_named_is_asked() -> None:
    quick, other = free(5), free(6, name="other")
    made = drafting(Scripted(Plan(1, "other"), Plan(1)), quick, other, offers=False)
    assert made.propose([1, 2], room=10).tokens == (6,)
    assert not quick.limits
    assert made.propose([1, 2], room=10).tokens == (5,)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="needs a drafter"):
        Drafting([], Scripted(), noise=Noise(0))
    with pytest.raises(InputError, match="chose the drafter 'nobody'; the session has call"):
        drafting(Scripted(Plan(1, "nobody")), free(5)).propose([1], room=5)
    tree = free(5, 6, parents=(-1, -1))
    with pytest.raises(CapabilityError, match="reproducible text needs chains"):
        drafting(Scripted(Plan(2, "call")), tree, chains_only=True).propose([1], room=5)
    long = Slow(lambda context, limit, rng: Draft((1,) * 9))
    with pytest.raises(InputError, match="'slow' proposed 9 tokens where at most 2"):
        drafting(Scripted(Plan(2, "slow")), long).propose([1], room=5)


def test_a_rest_that_an_answer_ends_in_is_told_before_the_next_one_or_at_the_end() -> None:
    policy = Scripted(rest=3)
    made = drafting(policy, free(5))
    for end in (lambda: made.begin([1, 2, 7, 8]), made.close):
        made.begin([1, 2])
        told = len(policy.costs)
        for _ in range(2):
            assert not made.asks()
            if made.timed:
                made.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
        assert policy.costs[told:] == []
        end()  # type: ignore[operator]
        assert [(cost.drafter, cost.repeats) for cost in policy.costs[told:]] == [(NO_DRAFTER, 1)]


def test_a_part_that_fails_to_close_leaves_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    def failing(name: str) -> None:
        closed.append(name)
        raise OSError(f"{name} failed")

    policy, first, second = Scripted(rest=1), free(5), slow(5)
    made = drafting(policy, first, second)
    assert not made.asks()
    made.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
    monkeypatch.setattr(policy, "observe", lambda cost, scores: failing("observe"))
    monkeypatch.setattr(policy, "close", lambda: failing("policy"), raising=False)
    monkeypatch.setattr(first, "close", lambda: failing("first"))
    monkeypatch.setattr(second, "close", lambda: failing("second"))
    with pytest.raises(OSError, match="failed"):
        made.close()
    assert sorted(closed) == ["first", "observe", "policy", "second"]
