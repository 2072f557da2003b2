"""`Drafting`: which drafter is asked when, what the policy observes, and to which drafter a round is charged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafting import COPIED, MOST_BETWEEN, WATCH, Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import ASKED, NO_DRAFTER, NO_SPEED_UP, WHOLE, Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.errors import InputError
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.schedule.cost_model import CostModel
from edgedecode.schedule.scheduler import Scheduler
from tests.toys import GREEDY, CallDrafter


class Scripted:
    """A policy that returns the given plans and records its signals, costs and scores."""

    def __init__(self, *plans: Plan, rest: int = 0) -> None:
        self.plans = list(plans)
        self.rest = rest
        self.shown: list[Signals] = []
        self.costs: list[RoundCost] = []
        self.scores: list[tuple[Score, ...]] = []

    def begin(self, kind: str = "") -> int:
        return self.rest

    def plan(self, signals: Signals) -> Plan:
        self.shown.append(signals)
        return self.plans.pop(0) if self.plans else Plan(0)

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        self.costs.append(cost)
        self.scores.append(tuple(scores))


class Slow(CallDrafter):
    """A drafter with a model that has three tokens yet to read."""

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
    policy: Scripted, *drafters: CallDrafter, offers: bool = True, clock: Callable[[], float] = perf_counter
) -> Drafting:
    drafts = Drafting(drafters, policy, noise=Noise(0, stream=1), offers=offers, clock=clock)
    drafts.begin([1, 2])
    return drafts


def verdict(draft: Draft, *tokens: int) -> Verdict:
    import numpy as np

    rows: FloatArray = np.zeros((1 + len(draft), 9), np.float32)
    accepted = tuple(range(len(tokens) - 1))
    return Verdict(draft, tokens, accepted, Outcome.CORRECTION, TargetRows(rows, Sampler(GREEDY, vocabulary_size=9)))


def asks(drafts: Drafting) -> bool:
    """Return whether the next round asks drafters."""
    drafts.propose([1, 2], room=8)
    return drafts._round is not None


def test_drafting_asks_free_drafters_before_the_plan_and_models_after_it() -> None:
    policy = Scripted(Plan(2, "slow", floor=0.25, read_max=7))
    quick, model = free(5, 6, 7), slow(5, 8, 8)
    drafts = drafting(policy, quick, model)
    assert drafts.propose([1, 2], room=10).tokens == (5, 8)
    assert policy.shown[0].offers == (Offer("call", 3, match=2),)
    assert policy.shown[0].unread == (("slow", 3),)
    assert [(plan.floor, plan.read_max) for plan in model.plans] == [(0.25, 7)]


def test_drafting_scores_offers_of_drafters_that_were_not_chosen() -> None:
    policy = Scripted(Plan(1, "slow"), Plan(0))
    drafts = drafting(policy, free(5, 6, 7), slow(5))
    tokens = [1, 2]
    draft = drafts.propose(tokens, room=10)
    tokens += [5, 9]
    drafts.observe(tokens, verdict(draft, 5, 9))
    drafts.spent(verdict(draft, 5, 9), pass_seconds=0.5, host_seconds=0.25)
    assert policy.scores == [(Score("call", 3, 1, match=2),)]


def test_drafting_charges_a_round_to_its_drafter_and_separates_draft_from_host_time() -> None:
    policy = Scripted(Plan(2, "slow"), Plan(0), Plan(0))
    ticks = iter((10.0, 10.125, 11.0, 11.5, 12.0, 12.0))  # two rounds: drafting, then the policy's learning
    drafts = drafting(policy, slow(5, 6), clock=lambda: next(ticks))
    draft = drafts.propose([1, 2], room=10)
    drafts.observe([1, 2, 5], verdict(draft, 5))
    drafts.spent(verdict(draft, 5), pass_seconds=0.5, host_seconds=0.25)
    (cost,) = policy.costs
    assert (cost.drafter, cost.width, cost.drafted, cost.accepted, cost.read) == ("slow", 3, 2, 0, 3)
    assert (cost.draft_seconds, cost.host_seconds) == (0.125, 0.125)
    drafts.propose([1, 2, 5], room=9)
    drafts.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
    assert [(cost.drafter, cost.width, cost.host_seconds) for cost in policy.costs[1:]] == [(ASKED, 1, 0.1 + 0.5)]


def test_drafting_charges_a_model_for_an_empty_draft() -> None:
    policy = Scripted(Plan(2, "slow"), Plan(0))
    drafts = drafting(policy, slow())
    draft = drafts.propose([1, 2], room=10)
    drafts.spent(verdict(draft, 7), pass_seconds=0.5, host_seconds=0.1)
    assert [(cost.drafter, cost.drafted, cost.width) for cost in policy.costs] == [("slow", 0, 1)]


@pytest.mark.parametrize(
    ("floor", "outcome", "at_once", "stopped", "steps"),
    [
        (0.5, Outcome.BONUS, 0, True, 3),
        (0.5, Outcome.ENDED, 0, False, 2),
        (0.0, Outcome.BONUS, 0, False, 2),
        (0.5, Outcome.BONUS, 4, True, 4),
        (0.5, Outcome.BONUS, 2, False, 2),  # all of its rows, of which the plan would have taken more
    ],
)
def test_drafting_charges_a_draft_that_ended_early_for_the_omitted_token(
    floor: float, outcome: Outcome, at_once: int, stopped: bool, steps: int
) -> None:
    policy = Scripted(Plan(4, "slow", floor=floor))
    drafts = drafting(policy, Slow(lambda context, limit, rng: Draft((3, 4), at_once=at_once)))
    draft = drafts.propose([1, 2], room=8)
    drafts.spent(Verdict(draft, (3, 4, 5), (0, 1), outcome, verdict(draft).rows), pass_seconds=0.1, host_seconds=0.1)
    (cost,) = policy.costs
    assert (cost.stopped, cost.steps) == (stopped, steps)


def test_drafting_at_rest_asks_no_drafter_and_keeps_every_cost() -> None:
    policy = Scripted(Plan(0, rest=2, reason=NO_SPEED_UP), Plan(0))
    quick = free(5)
    drafts = drafting(policy, quick)
    tokens = [1, 2]
    for token in (6, 7, 8):
        assert len(drafts.propose(tokens, room=10)) == 0
        assert drafts.plan.reason == NO_SPEED_UP
        tokens.append(token)
        drafts.spent(verdict(Draft(), token), pass_seconds=0.5, host_seconds=0.1)
    assert (len(quick.limits), len(policy.shown)) == (1, 1)
    drafts.propose(tokens, room=10)
    assert (len(quick.limits), len(policy.shown)) == (2, 2)
    assert [(cost.drafter, cost.repeats) for cost in policy.costs] == [(ASKED, 0), (NO_DRAFTER, 1)]
    assert [score for scores in policy.scores for score in scores] == [Score("call", 1, 0, match=2)]


class Watchful(CallDrafter):
    """A drafter that finds a copy of `copied` tokens, and records the lengths that it is asked about."""

    def __init__(self, copied: int, match: int = 2) -> None:
        super().__init__(lambda context, limit, rng: Draft((5,), source="call", match=match).cut(limit))
        self.copied, self.asked_about = copied, list[int]()

    def repeats(self, context: Sequence[int], length: int) -> bool:
        self.asked_about.append(length)
        return length <= self.copied


def test_rest_is_over_when_the_text_copies_itself() -> None:
    drafts = drafting(Scripted(rest=100), copying := Watchful(copied=COPIED))
    assert [asks(drafts) for _ in range(WATCH + 1)] == [False] * WATCH + [True]
    assert copying.asked_about == [COPIED]


def test_text_without_copies_is_looked_at_ever_less_often() -> None:
    drafts = drafting(Scripted(rest=1000), plain := Watchful(copied=0))
    looks = list[int]()
    for rounds in range(200):
        assert not asks(drafts)
        if len(plain.asked_about) > len(looks):
            looks.append(rounds)
    assert [after - before for before, after in pairwise(looks)] == [2 * WATCH, *[MOST_BETWEEN] * 5]


@pytest.mark.parametrize(("match", "wanted"), [(2, COPIED), (6, 12)])
def test_offers_that_did_not_pay_end_a_rest_only_as_much_longer_copies(match: int, wanted: int) -> None:
    drafts = drafting(Scripted(Plan(0, rest=100)), plain := Watchful(copied=0, match=match))
    assert asks(drafts)
    drafts.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
    assert not any(asks(drafts) for _ in range(2 * WATCH))
    assert plain.asked_about == [wanted]


def test_drafting_refuses_invalid_drafters_plans_and_drafts() -> None:
    with pytest.raises(InputError, match="needs a drafter"):
        Drafting([], Scripted(), noise=Noise(0))
    with pytest.raises(InputError, match="chose the drafter 'absent'; the session has call"):
        drafting(Scripted(Plan(1, "absent")), free(5)).propose([1], room=5)
    long = Slow(lambda context, limit, rng: Draft((1,) * 9))
    with pytest.raises(InputError, match="'slow' proposed 9 tokens where at most 2"):
        drafting(Scripted(Plan(2, "slow")), long).propose([1], room=5)


def test_drafting_reports_an_unfinished_rest_before_the_next_answer_or_at_close() -> None:
    policy = Scripted(rest=3)
    drafts = drafting(policy, free(5))
    for end in (lambda: drafts.begin([1, 2, 7, 8]), drafts.close):
        drafts.begin([1, 2])
        before = len(policy.costs)
        for _ in range(2):
            assert not asks(drafts)
            drafts.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
        assert policy.costs[before:] == []
        end()  # type: ignore[operator]
        assert [(cost.drafter, cost.repeats) for cost in policy.costs[before:]] == [(NO_DRAFTER, 1)]


def test_close_closes_every_part_although_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    def failing(name: str) -> None:
        closed.append(name)
        raise OSError(f"{name} failed")

    policy, first, second = Scripted(rest=1), free(5), slow(5)
    drafts = drafting(policy, first, second)
    assert not asks(drafts)
    drafts.spent(verdict(Draft(), 7), pass_seconds=0.5, host_seconds=0.1)
    monkeypatch.setattr(policy, "observe", lambda cost, scores: failing("observe"))
    monkeypatch.setattr(first, "close", lambda: failing("first"))
    monkeypatch.setattr(second, "close", lambda: failing("second"))
    with pytest.raises(OSError, match="failed"):
        drafts.close()
    assert sorted(closed) == ["first", "observe", "second"]


class Allows:
    """A constraint that allows the first `count` tokens of any draft."""

    structured = True

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def __init__(self, count: int) -> None:
        self.count = count

    def forced(self) -> Sequence[int]:
        return ()

    def allows(self, tokens: Sequence[int]) -> int:
        return min(self.count, len(tokens))

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        return row

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        return True

    def extend(self, tokens: Sequence[int]) -> None: ...


@pytest.mark.parametrize(("kept", "accepted"), [(2, 2), (2, 1), (0, 0)])
def test_drafting_charges_a_draft_that_a_grammar_cut_for_the_steps_that_ran(kept: int, accepted: int) -> None:
    policy = Scripted(Plan(8, "slow", floor=0.25))
    ticks = iter((10.0, 11.2, 12.0, 12.0))
    drafts = drafting(policy, slow(*range(1, 9)), clock=lambda: next(ticks))
    draft = drafts.propose([1, 2], room=10, constraint=Allows(kept))
    assert draft.tokens == tuple(range(1, 1 + kept))
    assert (drafts.plan.reason == "the grammar allows no draft") == (kept == 0)
    drafts.spent(verdict(draft, *range(1, 2 + accepted)), pass_seconds=0.5, host_seconds=1.3)
    (cost,) = policy.costs
    assert (cost.drafted, cost.cut, cost.steps, cost.stopped) == (kept, 8 - kept, 8, False)
    learnt = CostModel()
    for _ in range(3):
        learnt.observe(RoundCost(1, 1.0), context_tokens=8)
    learnt.observe(replace(cost, read=1), context_tokens=8)
    assert learnt.drafts["slow"].step.value == pytest.approx(0.15)
    judged = Scheduler(models=["slow"])
    judged.observe(cost)
    counts = judged.experience.history.tables["slow", 0]
    counts.settle()
    assert [sum(counts.tried), sum(counts.accepted)] == pytest.approx([accepted + 1, accepted]), "the next was wrong"
    assert judged.acceptance.stops("slow") == 0
