"""Measures one task family: every arm on every prompt, interleaved, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import median

from edgedecode.stats import TimeSplit

from .costs import CostMeter, Costs
from .results import ArmResult, FamilyResult
from .runs import Run, answer
from .settings import PLAIN, Arm, Settings, arms_of
from .survival import Host, Survival, predicted, predicted_at
from .timed import TimedPair

__all__ = ["measure_family"]

SAMPLES = 1
"""Cost samples a repetition: nine in the usual nine."""

Runs = list[list[Run]]
"""[prompt][repetition]"""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An arm's runs and plain decoding's on the prompts whose text is the same; on all when none is (same 0)."""

    mine: Runs
    plain: Runs
    same: int


def measure_family(
    timed: TimedPair, family: str, *, settings: Settings, meter: CostMeter, advance: Callable[[], None]
) -> FamilyResult:
    """Run the family's prompts, sampling costs in between. `advance` is called after every run."""
    prompts = settings.of_family(family)
    arms = arms_of(settings)
    runs: dict[Arm, Runs] = {arm: [[] for _ in prompts] for arm in arms}
    since = meter.samples
    for repetition in range(settings.repetitions):
        meter.sample(SAMPLES)
        for index, prompt in enumerate(prompts):
            # Each time another arm goes first: drift of clock and caches hits all alike.
            start = (repetition + index) % len(arms)
            for arm in (*arms[start:], *arms[:start]):
                run = answer(timed, prompt, arm=arm, max_tokens=settings.max_tokens, context=settings.context)
                runs[arm][index].append(run)
                advance()
    return _family(family, runs, settings=settings, costs=meter.costs(since=since))


def _family(family: str, runs: dict[Arm, Runs], *, settings: Settings, costs: Costs) -> FamilyResult:
    plain = runs[PLAIN]
    results = tuple(_arm(arm, runs[arm], plain=plain, costs=costs) for arm in runs if arm != PLAIN)
    bound, bound_arm = _bound(runs, settings=settings, costs=costs)
    return FamilyResult(
        family=family,
        prompts=len(plain),
        tokens=sum(len(prompt[0].tokens) for prompt in plain),
        plain_tokens_per_second=_speed(plain),
        plain_host_seconds_per_token=_host(plain),
        plain_unstable=sum(any(run.tokens != prompt[0].tokens for run in prompt) for prompt in plain),
        bound=bound,
        bound_arm=bound_arm,
        arms=results,
    )


def _arm(arm: Arm, runs: Runs, *, plain: Runs, costs: Costs) -> ArmResult:
    kept = _kept(runs, plain)
    survival = _survival(kept.mine)
    host = Host(_host(kept.plain), _host(kept.mine))
    ratios = _ratios(kept) if kept.same else []
    return ArmResult(
        drafter=arm.drafter,
        length=arm.length,
        speed_up=median(ratios) if ratios else None,
        speed_ups=tuple(sorted(ratios)),
        predicted=predicted(survival, costs, drafter=arm.drafter, host=host),
        tokens_per_second=_speed(kept.mine),
        acceptance_length=survival.acceptance_length,
        acceptance_per_position=tuple(survival.per_position),
        proposed=survival.proposed,
        accepted=survival.accepted,
        divergent=len(runs) - kept.same,
        host_seconds_per_round=host.round_seconds,
        reading_share=sum(run.reading_seconds for run in _all(kept.mine)) / sum(run.seconds for run in _all(kept.mine)),
        time=_split(kept.mine),
    )


def _bound(runs: dict[Arm, Runs], *, settings: Settings, costs: Costs) -> tuple[float, str]:
    """Return max S(k) and its arm: for each drafter from the survival recorded at its longest length."""
    best, name = 1.0, str(PLAIN)
    longest = max(settings.lengths)
    for drafter in settings.drafters:
        kept = _kept(runs[Arm(drafter, longest)], runs[PLAIN])
        survival = _survival(kept.mine)
        host = Host(_host(kept.plain), _host(kept.mine))
        for length in range(1, longest + 1):
            speed_up = predicted_at(survival, costs, drafter=drafter, host=host, length=length)
            if speed_up > best:
                best, name = speed_up, f"{drafter} {length}"
    return best, name


def _kept(mine: Runs, plain: Runs) -> _Kept:
    same = [_same_text(ours, theirs) for ours, theirs in zip(mine, plain, strict=True)]
    if not any(same):
        return _Kept(mine, plain, same=0)
    return _Kept(list(compress(mine, same)), list(compress(plain, same)), same=sum(same))


def _same_text(mine: Sequence[Run], theirs: Sequence[Run]) -> bool:
    """Every repetition must have said what plain decoding said first: verified text is plain's own."""
    return all(run.tokens == theirs[0].tokens for run in (*mine, *theirs))


def _ratios(kept: _Kept) -> list[float]:
    pairs = zip(_seconds_by_repetition(kept.plain), _seconds_by_repetition(kept.mine), strict=True)
    return [theirs / mine for theirs, mine in pairs]


def _seconds_by_repetition(runs: Runs) -> list[float]:
    return [sum(run.seconds for run in repetition) for repetition in zip(*runs, strict=True)]


def _survival(runs: Runs) -> Survival:
    survival = Survival()
    for run in _all(runs):
        for stats in run.stats:
            survival.add(stats)
    return survival


def _speed(runs: Runs) -> float:
    """Tokens after the first of each turn, per second: the median over repetitions."""
    tokens = [sum(len(run.tokens) - len(run.stats) for run in repetition) for repetition in zip(*runs, strict=True)]
    return median(count / seconds for count, seconds in zip(tokens, _seconds_by_repetition(runs), strict=True))


def _split(runs: Runs) -> TimeSplit:
    times = [stats.time for run in _all(runs) for stats in run.stats]
    return TimeSplit(
        draft=sum(time.draft for time in times),
        verify=sum(time.verify for time in times),
        sample=sum(time.sample for time in times),
        host=sum(time.host for time in times),
    )


def _all(runs: Runs) -> list[Run]:
    return [run for prompt in runs for run in prompt]


def _host(runs: Runs) -> float:
    gaps = [gap.seconds for run in _all(runs) for gap in run.host]
    return median(gaps) if gaps else 0.0
