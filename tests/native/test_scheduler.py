"""The native scheduler against Python's: the same plans, round by round, and the same knowledge kept."""

import random
from dataclasses import asdict
from typing import Any

from edgedecode.decoding.policy import ASKED, NO_DRAFTER, Offer, Plan, RoundCost, Score, Signals
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler, SchedulerOptions
from tests.native.conftest import Check

FREE, MODELS = ("suffix", "recycle"), ("model",)
KINDS = ("", "", "adapter", "{}")


class Rounds:
    """Random rounds of a machine whose costs and texts change now and then. Keeps each call of the scheduler."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.experience = Experience()
        self.options = SchedulerOptions(draft_max=self.rng.choice([1, 8, 16, 40]))
        self.calls: list[dict[str, Any]] = [
            {"options": {"draft_max": self.options.draft_max, "free": FREE, "models": MODELS}}
        ]
        self.results: list[Any] = [None]
        self.scheduler = self._scheduler()
        self.step, self.row, self.draft, self.accepted = 0.01, 0.3, 0.1, 0.7

    def _scheduler(self) -> Scheduler:
        return Scheduler(free=FREE, models=MODELS, experience=self.experience, options=self.options)

    def run(self, rounds: int) -> None:
        context, left, unread = 1, 0, 0
        while len(self.calls) < rounds:
            if left < 1:
                if self.rng.random() < 0.1:
                    self._reload()
                context = self.rng.choice([20, 400, 1500, 5000, 20000])
                left, unread = self.rng.choice([3, 30, 300]), context
                rest = self._call("begin", self.rng.choice(KINDS))
                left -= self._rest(min(rest, left - 2))
            if self.rng.random() < 0.02:
                self._change()
            emitted, drafter = self._round(context, left, unread)
            unread = 1 if drafter in MODELS else unread + emitted
            context, left = context + emitted, left - emitted

    def _round(self, context: int, left: int, unread: int) -> tuple[int, str]:
        offers = tuple(
            Offer(name, self.rng.randint(1, 40), self.rng.choice([0, 1, 2, 3, 5, 9, 17, 64]))
            for name in FREE
            if self.rng.random() < 0.7
        )
        plan = self._call("plan", Signals(context, left, offers, ((MODELS[0], unread),)))
        offered = {offer.drafter: offer for offer in offers}
        name = plan.drafter or NO_DRAFTER
        limit = offered[name].length if name in offered else 64
        stopped = plan.floor > 0 and self.rng.random() < 0.4
        drafted = min(plan.draft_max, limit, left - 1)
        drafted = self.rng.randint(0, drafted) if stopped else drafted
        cut = self.rng.randint(0, drafted) if self.rng.random() < 0.05 else 0
        kept = drafted - cut
        accepted = next((n for n in range(kept) if self.rng.random() > self.accepted), kept)
        read = min(unread, plan.read_max or unread) if name in MODELS else 0
        seconds = self.draft * self.step * (drafted + 0.1 * read) if name in MODELS else 0.0
        asked = plan.draft_max > 0 and (drafted or seconds)
        cost = RoundCost(
            width=1 + kept,
            pass_seconds=self._seconds(1 + self.row * kept),
            host_seconds=self._seconds(0.01 if asked else 0.004),
            drafter=name if asked else ASKED,
            drafted=kept,
            accepted=accepted,
            read=read,
            draft_seconds=seconds,
            match=offered[name].match if name in offered else 0,
            cut=cut,
            stopped=stopped and name in MODELS,
        )
        scores = [self._score(offer) for offer in offers if self.rng.random() < 0.8]
        self._call("observe", cost, scores)
        return accepted + 1 + self._rest(min(plan.rest, left - accepted - 2)), name

    def _rest(self, rounds: int) -> int:
        """Rest as planned, or less; return the number of rounds."""
        rounds = self.rng.randint(0, rounds) if rounds > 0 and self.rng.random() < 0.3 else max(0, rounds)
        if rounds:
            cost = RoundCost(1, self._seconds(1), self._seconds(0.004), repeats=rounds - 1)
            self._call("observe", cost, [])
        return rounds

    def _seconds(self, steps: float) -> float:
        spike = 3.0 if self.rng.random() < 0.05 else 1.0
        return self.step * steps * spike * self.rng.uniform(0.9, 1.1)

    def _score(self, offer: Offer) -> Score:
        accepted = next((n for n in range(offer.length) if self.rng.random() > self.accepted), offer.length)
        return Score(offer.drafter, offer.length, accepted, offer.match)

    def _change(self) -> None:
        self.step *= self.rng.choice([0.5, 1.0, 2.0])
        self.row, self.draft = self.rng.uniform(0, 0.6), self.rng.uniform(0.02, 0.5)
        self.accepted = self.rng.choice([0.1, 0.5, 0.9, 0.99])

    def _reload(self) -> None:
        kept = self.experience.as_dict()
        self.calls.append({"reload": True})
        self.results.append(kept)
        self.experience = Experience.from_dict(kept)
        self.experience.doubt()
        self.scheduler = self._scheduler()

    def _call(self, name: str, value: Any, scores: list[Score] | None = None) -> Any:
        call = {name: value if isinstance(value, str) else asdict(value)}
        if scores is not None:
            call["scores"] = [asdict(score) for score in scores]
        self.calls.append(call)
        result = self.scheduler.observe(value, scores) if scores is not None else getattr(self.scheduler, name)(value)  # type: ignore[func-returns-value]
        self.results.append(asdict(result) if isinstance(result, Plan) else result)
        return result


def test_the_same_plans(native_check: Check) -> None:
    reasons = set[str]()
    for seed in range(8):
        rounds = Rounds(seed)
        rounds.run(4000)
        found = native_check("scheduler", lines=rounds.calls)
        assert len(found) == len(rounds.results)
        for number, (native, own) in enumerate(zip(found, rounds.results, strict=True)):
            if "reload" in rounds.calls[number]:
                own = _as_native(own)
            assert native == own, (seed, number, rounds.calls[number])
        reasons |= {each["reason"] for each in found if isinstance(each, dict) and "reason" in each}
    assert reasons == {
        *("last token", "measuring", "speed-up expected", "exploring", "probing", "no speed-up expected")
    }


def _as_native(kept: dict[str, Any]) -> dict[str, Any]:
    """Return what Python keeps in the native library's form."""
    plain = {"history": kept.pop("history"), "stops": kept.pop("stops"), "balances": kept.pop("balances")}
    kinds = {
        name: {"history": kind["tables"], "stops": kind["stops"], "balances": kind["balances"]}
        for name, kind in kept.pop("kinds").items()
    }
    assert kept.pop("widths") == []
    return {**kept, "plain": plain, "kinds": kinds}
