"""A simulated machine for scheduler tests: round times from a formula, scripted drafters, and the real `Drafting`."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, FixedLength, Plan, Policy, RoundCost, Score, Signals
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler, SchedulerOptions
from tests.toys import GREEDY

Accepts = Callable[[int], bool]
"""Maps a position in the text to whether a draft of that token would be right."""

STEP = 0.015
"""Seconds of a forward pass without a draft."""
_ROWS = TargetRows(np.zeros((1, 2), np.float32), Sampler(GREEDY, vocabulary_size=2))


def never(place: int) -> bool:
    return False


def always(place: int) -> bool:
    return True


@dataclass(frozen=True)
class Machine:
    """Costs in units of a pass without a draft.

    row: each further row. draft: a drafted token; the first costs `again` more, of a head that reads again what was
    accepted. read: a token prefilled by the draft model. host: the host overhead
    of a round. asking: the additional overhead of asking drafters. jitter: the relative standard deviation of a pass's
    time. spikes: the share of passes that take three times as long. widths: passes of fixed widths, ascending, each
    with its cost; empty: any width.
    """

    row: float = 0.35
    draft: float = 0.15
    again: float = 0.0
    read: float = 0.05
    host: float = 0.005
    asking: float = 0.01
    jitter: float = 0.0
    spikes: float = 0.0
    widths: tuple[tuple[int, float], ...] = ()

    def c(self, width: int) -> float:
        if self.widths:
            covering = [cost for fixed, cost in self.widths if fixed >= width]
            return covering[0] if covering else self.widths[-1][1] + self.c(width - self.widths[-1][0])
        return 1 + self.row * (width - 1)

    @property
    def slowdown(self) -> float:
        """The mean factor by which noise lengthens a pass."""
        return math.exp(self.jitter**2 / 2) * (1 + 2 * self.spikes)


class Clock:
    """A clock that advances by `spend`, with the machine's noise; `pace` is a constant factor."""

    def __init__(self, machine: Machine, seed: int = 0, pace: float = 1.0) -> None:
        self.now, self._pace = 0.0, pace
        self._machine, self._rng = machine, random.Random(seed)

    def __call__(self) -> float:
        return self.now

    def spend(self, steps: float) -> None:
        """Advance the clock by `steps` passes without a draft."""
        factor = 1.0
        if self._machine.jitter or self._machine.spikes:
            factor = math.exp(self._rng.gauss(0, self._machine.jitter))
            factor *= 3 if self._rng.random() < self._machine.spikes else 1
        self.now += steps * STEP * factor * self._pace


class Scripted:
    """A drafter that is right where `accepts` is true; with a `step` (the cost of a token) it has its own model."""

    nbytes = 0

    def __init__(self, name: str, accepts: Accepts, clock: Clock, *, match: int = 0, step: float = 0.0) -> None:
        self.name, self.free = name, not step
        self._accepts, self._clock, self._match, self._step = accepts, clock, match, step
        self._read = 0

    def begin(self, context: Sequence[int]) -> None:
        self._read = 0

    def unread(self, context: Sequence[int]) -> int:
        return 0 if self.free else len(context) - self._read

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        place = len(context)
        tokens = tuple(place + index if self._accepts(place + index) else -1 for index in range(min(limit, 16)))
        if not self.free:
            unread = self.unread(context)
            read = min(unread, plan.read_max or unread)
            self._clock.spend(max(0, read - 1) * self._clock._machine.read + len(tokens) * self._step)
            self._read = place
            return Draft(tokens, source=self.name)
        return Draft(tokens, source=self.name, match=self._match)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        if verdict.draft.source == self.name:
            self._read = len(context) - 1  # all but the target's last token were drafted, so their KV state exists

    def close(self) -> None: ...


class ScriptedHead(Scripted):
    """One that reads again what was accepted, and stops where its plan says.

    It knows of no token more than the share of its tokens that are right.
    """

    right = 1.0

    def unread(self, context: Sequence[int]) -> int:
        return len(context) - self._read

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        place, limit = len(context), min(limit, 16)
        length = next((count for count in range(limit) if self.right ** (count + 1) < plan.floor), limit)
        steps, machine = min(length + 1, limit), self._clock._machine  # the token that it drops has been computed
        self._clock.spend(machine.again + max(0, self.unread(context) - 2) * machine.read + steps * self._step)
        self._read = place
        tokens = tuple(place + index if self._accepts(place + index) else -1 for index in range(length))
        return Draft(tokens, source=self.name)

    def observe(self, context: Sequence[int], verdict: Verdict) -> None: ...


@dataclass
class Simulation:
    """The record of a simulation: its cost in passes without a draft, every plan and every round's acceptance."""

    cost: float = 0.0
    plans: list[Plan] = field(default_factory=list)
    calls: list[Signals | RoundCost] = field(default_factory=list)
    """The inputs of the policy, in order."""
    scores: list[Sequence[Score]] = field(default_factory=list)
    rounds: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Position in the text, drafter, drafted, accepted."""

    def used(self, drafter: str) -> list[int]:
        """Return the positions at which this drafter drafted."""
        return [place for place, name, drafted, _ in self.rounds if name == drafter and drafted]


class _Recorded:
    """A policy whose calls are recorded."""

    def __init__(self, policy: Policy, record: Simulation) -> None:
        self._policy, self._record = policy, record

    def begin(self, kind: str = "") -> int:
        return self._policy.begin(kind)

    def plan(self, signals: Signals) -> Plan:
        plan = self._policy.plan(signals)
        self._record.plans.append(plan)
        self._record.calls.append(signals)
        return plan

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        self._record.calls.append(cost)
        self._record.scores.append(tuple(scores))
        self._policy.observe(cost, scores)


def scheduler(experience: Experience | None = None, **options: int) -> Scheduler:
    return Scheduler(
        free=["free"], models=["model"], experience=experience, options=SchedulerOptions(**options) if options else None
    )


def simulate(
    policy: Policy,
    *,
    tokens: int,
    machine: Machine | None = None,
    free: Accepts | None = None,
    model: Accepts | None = None,
    match: int = 3,
    prompt: int = 32,
    seed: int = 0,
    pace: float = 1.0,
    kind: str = "",
    model_kind: type[Scripted] = Scripted,
) -> Simulation:
    """Simulate `tokens` tokens after a prompt: token i of the text is i, a wrong draft is -1.

    free, model: whether the drafter is right at a position; None: that drafter does not exist. seed: of the machine's
    noise. pace: a factor of all times. kind: of the answer. model_kind: the class of the drafter with a model.
    """
    machine, result = machine or Machine(), Simulation()
    clock = Clock(machine, seed, pace)
    drafters: list[Drafter] = [] if free is None else [Scripted("free", free, clock, match=match)]
    if model is not None:
        drafters.append(model_kind("model", model, clock, step=machine.draft))
    chooses = not isinstance(policy, FixedLength)
    recorded = _Recorded(policy, result)
    drafting = None
    if drafters:
        noise = Noise(0, stream=1)
        drafting = Drafting(drafters, recorded, noise=noise, offers=chooses, clock=clock)
    text, end = list(range(prompt + 1)), prompt + tokens
    if drafting is not None:
        drafting.begin(text, kind)
    while len(text) < end:
        started, place = clock(), len(text)
        draft = EMPTY_DRAFT if drafting is None else drafting.propose(text, room=end - place - 1)
        asked = drafting is not None and drafting._round is not None
        clock.spend(machine.host + (machine.asking if asked and chooses else 0.0))
        proposed = clock()
        clock.spend(machine.c(1 + len(draft)))
        seconds = clock() - proposed
        accepted = next((index for index, token in enumerate(draft.tokens) if token != place + index), len(draft))
        emitted = tuple(range(place, place + accepted + 1))
        outcome = Outcome.BONUS if accepted == len(draft) else Outcome.CORRECTION
        verdict = Verdict(draft, emitted, tuple(range(accepted)), outcome, _ROWS)
        text += emitted
        if drafting is not None:
            drafting.observe(text, verdict)
            drafting.spent(verdict, pass_seconds=seconds, host_seconds=proposed - started)
        name = draft.source if len(draft) else "none"
        result.rounds.append((place - prompt - 1, name, len(draft), accepted))
    if drafting is not None:
        drafting.close()
    result.cost = clock() / STEP
    return result
