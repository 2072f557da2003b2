"""What passes cost on this device, measured in full instead of learnt in passing, and handed to the scheduler.

For each context bucket c(n), the draft's step and its reading, interleaved; host work by drafter from short answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from edgedecode import Pair
from edgedecode.decoding.policy import RoundCost
from edgedecode.schedule.cost import STEADY, CostModel, Recent
from edgedecode.text.prompts import Prompt

from ..settings import PLAIN, Arm
from .cost_meter import READ, WIDEST, CostMeter, Costs
from .timed import TimedPair
from .timed_answers import Requests

__all__ = ["CONTEXTS", "bucket_contexts", "learn", "measure_buckets", "measure_host"]

CONTEXTS = (256, 1024, 4096, 12288)
"""Tokens of context, one in each bucket of the cost model."""
_HOST_DRAFT = 2
_SETTLING = 8
"""So often a median is told to the cost model, which takes a single pass for noise."""


def bucket_contexts(most: int) -> list[int]:
    """Return the context of each bucket that a state of `most` positions reaches; at least one."""
    fitting = [context for context in CONTEXTS if context + READ <= most]
    return fitting or [max(1, most - READ)]


def measure_buckets(
    timed: TimedPair,
    *,
    tokens: Sequence[int],
    contexts: Sequence[int],
    repetitions: int,
    advance: Callable[[], None],
) -> list[Costs]:
    """Time passes at each context, a sample of each in turn."""
    meters = [CostMeter(timed, tokens=tokens, widest=WIDEST + 1, context=context, reading=True) for context in contexts]
    try:
        for _ in range(repetitions):
            for meter in meters:
                meter.sample()
                advance()
        return [meter.costs() for meter in meters]
    finally:
        for meter in meters:
            meter.close()


def measure_host(
    requests: Requests, prompts: Sequence[Prompt], *, advance: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Return the host's median seconds in a round of each of the settings' drafters; "none" is plain decoding's."""
    gaps: dict[Arm, list[float]] = {PLAIN: [], **{Arm(name, _HOST_DRAFT): [] for name in requests.settings.drafters}}
    for prompt in prompts:
        for arm, mine in gaps.items():
            run = requests.answer(prompt, arm)
            mine += [gap.seconds for gap in run.host if gap.drafted or arm == PLAIN]
            advance()
    return {str(arm.drafter): median(seconds) for arm, seconds in gaps.items() if seconds}


def learn(pair: Pair, costs: Sequence[Costs], *, host: Mapping[str, float]) -> None:
    """Put these in the place of what the pair's scheduler learnt so far of costs."""
    model = CostModel()
    for measured in reversed(costs):  # the first one's draft costs stand: most text is short
        alone = CostModel()
        for cost in _rounds(measured):
            alone.observe(cost, context_tokens=measured.context)
        model.tables.update(alone.tables)
        model.drafts = alone.drafts
    step = costs[0].step_seconds
    model.host = {name: Recent(seconds / step, most=STEADY) for name, seconds in host.items()}
    pair.experience.costs = model


def _rounds(costs: Costs) -> list[RoundCost]:
    """Return rounds that cost what was measured; the narrow ones come first, as the unit of the others."""
    rounds = [
        RoundCost(width, seconds) for width, seconds in sorted(costs.target_seconds.items()) for _ in range(_SETTLING)
    ]
    for drafter in costs.drafters:
        step = costs.d(drafter, _HOST_DRAFT) * costs.step_seconds
        one = RoundCost(2, costs.target_seconds[2], drafter=drafter, drafted=1, read=1, draft_seconds=step)
        rounds.append(one)
        if costs.read_seconds is not None:
            rounds.append(replace(one, read=READ, draft_seconds=step + (READ - 1) * costs.read_seconds))
    return rounds
