"""`bench --calibrate`: measures the scheduler's cost model in full, instead of learning it while decoding.

For each context bucket: c(n), the draft's step and its prefill, interleaved. Host overhead by drafter from short
answers.
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

CONTEXTS = (256, 1024, 4096, 12288)
"""A context length in each bucket of the cost model."""
_HOST_DRAFT = 2
"""Draft length for measuring host overhead."""
_SETTLING = 8
"""Number of times a median is passed to the cost model, which treats a single pass as noise."""


def bucket_contexts(most: int) -> list[int]:
    """Return the context of each bucket that a KV cache of `most` positions reaches, at least one."""
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
    """Time passes at each context, with interleaved samples."""
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
    """Return the median host overhead per round in seconds, by drafter; "none" is plain decoding."""
    gaps: dict[Arm, list[float]] = {PLAIN: [], **{Arm(name, _HOST_DRAFT): [] for name in requests.settings.drafters}}
    for prompt in prompts:
        for arm, mine in gaps.items():
            run = requests.answer(prompt, arm)
            mine += [gap.seconds for gap in run.host if gap.drafted or arm == PLAIN]
            advance()
    return {str(arm.drafter): median(seconds) for arm, seconds in gaps.items() if seconds}


def learn(pair: Pair, costs: Sequence[Costs], *, host: Mapping[str, float]) -> None:
    """Replace the cost model of the pair's scheduler with these measurements."""
    model = CostModel()
    for measured in reversed(costs):  # so that the draft costs of the shortest context stay: most text is short
        alone = CostModel()
        for cost in _rounds(measured):
            alone.observe(cost, context_tokens=measured.context)
        model.tables.update(alone.tables)
        model.drafts = alone.drafts
    step = costs[0].step_seconds
    model.host = {name: Recent(seconds / step, most=STEADY) for name, seconds in host.items()}
    pair.experience.costs = model


def _rounds(costs: Costs) -> list[RoundCost]:
    """Return rounds with the measured costs, the narrowest first, which the cost model takes as the unit."""
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
