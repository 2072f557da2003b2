"""Measures one task family, every arm on every prompt, interleaved, and computes its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import median

from edgedecode.decoding.stats import DrafterCount, TimeSplit

from ..settings import PLAIN, SCHEDULED, Arm, Settings, arms_of
from .cost_meter import CostMeter, Costs
from .family_results import ArmResult, FamilyResult, Hindsight
from .survival import Host, Survival, predicted, predicted_at
from .timed_answers import Requests, Run

SAMPLES = 1
"""Cost samples per repetition."""

Runs = list[list[Run]]
"""[prompt][repetition]"""


@dataclass(frozen=True, slots=True)
class _Comparable:
    """Runs of an arm and of a baseline on the `same` prompts with equal text, or on all prompts if `same` is 0."""

    mine: Runs
    plain: Runs
    same: int


def measure_family(requests: Requests, family: str, *, meter: CostMeter, advance: Callable[[], None]) -> FamilyResult:
    """Run the family's prompts; `advance` is called after every run.

    With fixed arms, costs are sampled between the runs, so that both see the same load on the machine. Without them,
    all samples taken so far are used.
    """
    settings = requests.settings
    prompts = settings.of_family(family)
    arms = arms_of(settings)
    runs: dict[Arm, Runs] = {arm: [[] for _ in prompts] for arm in arms}
    since = meter.samples if settings.fixed else 0
    for repetition in range(settings.repetitions):
        if settings.fixed:
            meter.sample(SAMPLES)
        for index, prompt in enumerate(prompts):
            # Each time another arm goes first, so that drift of clock and caches affects all arms alike.
            start = (repetition + index) % len(arms)
            for arm in (*arms[start:], *arms[:start]):
                runs[arm][index].append(requests.answer(prompt, arm))
                advance()
    return _family(family, runs, settings=settings, costs=meter.costs(since=since))


def _family(family: str, runs: dict[Arm, Runs], *, settings: Settings, costs: Costs) -> FamilyResult:
    plain = runs[PLAIN]
    scheduled = _arm(SCHEDULED, runs[SCHEDULED], plain=plain, costs=costs)
    arms = tuple(_arm(arm, runs[arm], plain=plain, costs=costs) for arm in arms_of(settings)[2:])
    bound, bound_arm = _bound(arms, runs, settings=settings, costs=costs) if arms else (None, "")
    result = FamilyResult(
        family=family,
        prompts=len(plain),
        tokens=sum(len(prompt[0].tokens) for prompt in plain),
        plain_tokens_per_second=_speed(plain),
        plain_first_token_seconds=_first_token(plain),
        plain_host_seconds_per_token=_host(plain),
        plain_unstable=sum(any(run.tokens != prompt[0].tokens for run in prompt) for prompt in plain),
        scheduled=scheduled,
        arms=arms,
        bound=bound,
        bound_arm=bound_arm,
        hindsight=None,
    )
    return replace(result, hindsight=_hindsight(result, runs, settings=settings)) if arms else result


def _hindsight(result: FamilyResult, runs: dict[Arm, Runs], *, settings: Settings) -> Hindsight | None:
    """Compare the scheduler with the best fixed arm, on the prompts where both generated plain decoding's text."""
    best, speed_up = PLAIN, 1.0
    if result.best is not None and (result.best.speed_up or 0.0) > 1:
        best, speed_up = Arm(result.best.drafter, result.best.length), result.best.speed_up or 0.0
    mine, rival, plain = runs[SCHEDULED], runs[best], runs[PLAIN]
    same = [_same_text((*ours, *theirs), base) for ours, theirs, base in zip(mine, rival, plain, strict=True)]
    if not any(same):
        return None
    kept = _Comparable(list(compress(mine, same)), list(compress(rival, same)), same=sum(same))
    ratio, whole = (median(_ratios(kept, seconds)) for seconds in (_decoding, _whole))
    return Hindsight(str(best), speed_up, ratio=ratio, whole_ratio=whole)


def _arm(arm: Arm, runs: Runs, *, plain: Runs, costs: Costs) -> ArmResult:
    kept = _comparable(runs, plain)
    survival = _survival(kept.mine)
    host = Host(_host(kept.plain), _host(kept.mine))
    ratios, wholes = (_ratios(kept, seconds) if kept.same else [] for seconds in (_decoding, _whole))
    drafters = _drafters(kept.mine)
    return ArmResult(
        drafter=arm.drafter,
        length=arm.length,
        speed_up=median(ratios) if ratios else None,
        speed_ups=tuple(sorted(ratios)),
        whole_speed_up=median(wholes) if wholes else None,
        whole_speed_ups=tuple(sorted(wholes)),
        first_token_seconds=_first_token(kept.mine),
        predicted=_predicted(arm, survival, costs, host=host, drafters=drafters),
        tokens_per_second=_speed(kept.mine),
        acceptance_length=survival.acceptance_length,
        acceptance_per_position=tuple(survival.per_position),
        rounds=survival.rounds,
        proposed=survival.proposed,
        accepted=survival.accepted,
        drafters=drafters,
        plain_rounds=_plain_rounds(kept.mine),
        divergent=len(runs) - kept.same,
        host_seconds_per_round=host.round_seconds,
        reading_share=sum(run.reading_seconds for run in _all(kept.mine)) / sum(run.seconds for run in _all(kept.mine)),
        time=_split(kept.mine),
    )


def _predicted(
    arm: Arm, survival: Survival, costs: Costs, *, host: Host, drafters: Mapping[str, DrafterCount]
) -> float:
    """Return the S predicted for these rounds; the scheduler's rounds have several drafters, each with its own d."""
    if arm.drafter is not None:
        return predicted(survival, costs, drafter=arm.drafter, host=host)
    drafting = sum(
        count.proposed * costs.d(name, max(1, round(count.proposed / count.rounds))) for name, count in drafters.items()
    )
    return predicted(survival, costs, drafter="none", host=host, drafting=drafting)


def _bound(arms: Sequence[ArmResult], runs: dict[Arm, Runs], *, settings: Settings, costs: Costs) -> tuple[float, str]:
    """Return max S(k) and its arm, for each drafter from the survival recorded at its longest length.

    A smaller tree is not a prefix of a larger one, so for trees only the measured arms count.
    """
    bounds = [(1.0, str(PLAIN))]
    longest = max(settings.lengths)
    for drafter in settings.drafters:
        kept = _comparable(runs[Arm(drafter, longest)], runs[PLAIN])
        survival = _survival(kept.mine)
        if survival.branching > 1:
            bounds += [(arm.predicted, arm.name) for arm in arms if arm.drafter == drafter]
            continue
        host = Host(_host(kept.plain), _host(kept.mine))
        bounds += [
            (predicted_at(survival, costs, drafter=drafter, host=host, length=length), f"{drafter} {length}")
            for length in range(1, longest + 1)
        ]
    return max(bounds, key=lambda bound: bound[0])


def _comparable(mine: Runs, plain: Runs) -> _Comparable:
    same = [_same_text(ours, theirs) for ours, theirs in zip(mine, plain, strict=True)]
    if not any(same):
        return _Comparable(mine, plain, same=0)
    return _Comparable(list(compress(mine, same)), list(compress(plain, same)), same=sum(same))


def _same_text(mine: Sequence[Run], theirs: Sequence[Run]) -> bool:
    """Tell whether every repetition, of plain decoding too, generated the tokens of plain decoding's first run."""
    return all(run.tokens == theirs[0].tokens for run in (*mine, *theirs))


def _ratios(kept: _Comparable, seconds: Callable[[Run], float]) -> list[float]:
    pairs = zip(_by_repetition(kept.plain, seconds), _by_repetition(kept.mine, seconds), strict=True)
    return [theirs / mine for theirs, mine in pairs]


def _by_repetition(runs: Runs, value: Callable[[Run], float]) -> list[float]:
    return [sum(value(run) for run in repetition) for repetition in zip(*runs, strict=True)]


def _decoding(run: Run) -> float:
    return run.seconds


def _whole(run: Run) -> float:
    return run.whole_seconds


def _first_token(runs: Runs) -> float:
    """Return the time to first token in seconds: the median over repetitions of the mean over turns."""
    turns = _by_repetition(runs, lambda run: len(run.stats))
    return median(s / n for s, n in zip(_by_repetition(runs, lambda run: run.first_seconds), turns, strict=True))


def _drafters(runs: Runs) -> dict[str, DrafterCount]:
    """Return each drafter's counts, the most used drafter first."""
    counts: dict[str, DrafterCount] = {}
    for run in _all(runs):
        for stats in run.stats:
            for name, count in stats.drafters.items():
                mine = counts.setdefault(name, DrafterCount())
                mine.rounds += count.rounds
                mine.proposed += count.proposed
                mine.accepted += count.accepted
    return dict(sorted(counts.items(), key=lambda item: -item[1].rounds))


def _plain_rounds(runs: Runs) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for run in _all(runs):
        for stats in run.stats:
            reasons.update(stats.plain_rounds)
    return dict(reasons.most_common())


def _survival(runs: Runs) -> Survival:
    survival = Survival()
    for run in _all(runs):
        for stats in run.stats:
            survival.add(stats)
    return survival


def _speed(runs: Runs) -> float:
    """Return tokens per second after the first token of each turn: the median over repetitions."""
    tokens = [sum(len(run.tokens) - len(run.stats) for run in repetition) for repetition in zip(*runs, strict=True)]
    return median(count / seconds for count, seconds in zip(tokens, _by_repetition(runs, _decoding), strict=True))


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
