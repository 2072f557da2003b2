"""Measures one task family, every arm on every prompt, interleaved, and computes its figures.

The figures are JSON-serialisable with `dataclasses.asdict`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import attrgetter
from statistics import median

from edgedecode.decoding.stats import DrafterCount, Stats

from ..settings import PLAIN, SCHEDULED, Arm, arms_of
from .timed_answers import Requests, Run

Runs = list[list[Run]]
"""[prompt][repetition]"""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One drafter at one length on one family, or the scheduler (drafter or length None).

    `speed_up` is plain decoding's seconds / this arm's seconds after the first token, the median over repetitions, on
    the prompts whose text equals plain decoding's; None if there are none. `speed_ups` holds all repetitions, sorted.
    The `whole_…` figures are for full requests, with prefill. `divergent` counts the prompts with another text. All
    other figures are for the same prompts as `speed_up`, or for all prompts if it is None.
    """

    drafter: str | None
    length: int | None
    speed_up: float | None
    speed_ups: tuple[float, ...]
    whole_speed_up: float | None
    whole_speed_ups: tuple[float, ...]
    first_token_seconds: float
    """Time to first token: the median over repetitions of the mean over turns."""
    tokens_per_second: float
    acceptance_length: float
    """Tokens per target pass after prefill, the target's own included."""
    rounds: int
    """Rounds of all repetitions, without prefill."""
    proposed: int
    accepted: int
    drafters: dict[str, DrafterCount]
    """The most used drafter first."""
    plain_rounds: dict[str, int]
    """Rounds without a draft, by reason."""
    divergent: int

    @property
    def name(self) -> str:
        return str(Arm(self.drafter, self.length))


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The best fixed arm of a family, plain decoding included, and how the scheduler compares with it.

    The ratios are the arm's seconds / the scheduler's, medians over repetitions, on the prompts where both generated
    plain decoding's text. As the maximum of noisy figures, `speed_up` is slightly too high.
    """

    arm: str
    speed_up: float
    ratio: float
    whole_ratio: float


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Plain decoding, the scheduler and every fixed arm on one family."""

    family: str
    prompts: int
    tokens: int
    """Tokens of one repetition of plain decoding."""
    plain_tokens_per_second: float
    plain_first_token_seconds: float
    plain_unstable: int
    """Prompts whose plain text differs between repetitions, which points to a fault of the machine or the engine."""
    scheduled: ArmResult
    arms: tuple[ArmResult, ...]
    """The fixed arms; empty if not requested, and then there is no hindsight."""
    hindsight: Hindsight | None = None
    """None also if no prompt's texts are comparable."""

    @property
    def best(self) -> ArmResult | None:
        """The fastest fixed arm whose text equals plain decoding's on at least half of the prompts, if any."""
        measured = [arm for arm in self.arms if arm.speed_up is not None and 2 * arm.divergent <= self.prompts]
        return max(measured, key=lambda arm: arm.speed_up or 0.0, default=None)

    @property
    def all_arms(self) -> tuple[ArmResult, ...]:
        return self.scheduled, *self.arms


def measure_family(requests: Requests, family: str, *, advance: Callable[[], None]) -> FamilyResult:
    """Run the family's prompts; `advance` is called after every run."""
    settings = requests.settings
    prompts = settings.of_family(family)
    arms = arms_of(settings)
    runs: dict[Arm, Runs] = {arm: [[] for _ in prompts] for arm in arms}
    for repetition in range(settings.repetitions):
        for index, prompt in enumerate(prompts):
            # Each time another arm goes first, so that drift of clock and caches affects all arms alike.
            start = (repetition + index) % len(arms)
            for arm in (*arms[start:], *arms[:start]):
                runs[arm][index].append(requests.answer(prompt, arm))
                advance()
    return _family(family, runs)


def _family(family: str, runs: dict[Arm, Runs]) -> FamilyResult:
    plain = runs[PLAIN]
    result = FamilyResult(
        family=family,
        prompts=len(plain),
        tokens=sum(len(prompt[0].tokens) for prompt in plain),
        plain_tokens_per_second=_speed(plain),
        plain_first_token_seconds=_first_token(plain),
        plain_unstable=sum(any(run.tokens != prompt[0].tokens for run in prompt) for prompt in plain),
        scheduled=_arm(SCHEDULED, runs[SCHEDULED], plain=plain),
        arms=tuple(_arm(arm, runs[arm], plain=plain) for arm in runs if arm not in (PLAIN, SCHEDULED)),
    )
    return replace(result, hindsight=_hindsight(result, runs)) if result.arms else result


def _hindsight(result: FamilyResult, runs: dict[Arm, Runs]) -> Hindsight | None:
    """Compare the scheduler with the best fixed arm, on the prompts where both generated plain decoding's text."""
    best, speed_up = PLAIN, 1.0
    if result.best is not None and (result.best.speed_up or 0.0) > 1:
        best, speed_up = Arm(result.best.drafter, result.best.length), result.best.speed_up or 0.0
    mine, rival, plain = runs[SCHEDULED], runs[best], runs[PLAIN]
    same = [_same_text((*ours, *theirs), base) for ours, theirs, base in zip(mine, rival, plain, strict=True)]
    if not any(same):
        return None
    mine, rival = list(compress(mine, same)), list(compress(rival, same))
    return Hindsight(str(best), speed_up, *(median(_ratios(mine, rival, seconds)) for seconds in (_decoding, _whole)))


def _arm(arm: Arm, runs: Runs, *, plain: Runs) -> ArmResult:
    same = [_same_text(ours, theirs) for ours, theirs in zip(runs, plain, strict=True)]
    kept, base = (list(compress(runs, same)), list(compress(plain, same))) if any(same) else (runs, plain)
    ratios, wholes = (_ratios(kept, base, seconds) if any(same) else [] for seconds in (_decoding, _whole))
    every = [stats for prompt in kept for run in prompt for stats in run.stats]
    rounds = sum(stats.rounds - 1 for stats in every)  # without prefill, which never has a draft
    return ArmResult(
        drafter=arm.drafter,
        length=arm.length,
        speed_up=median(ratios) if ratios else None,
        speed_ups=tuple(ratios),
        whole_speed_up=median(wholes) if wholes else None,
        whole_speed_ups=tuple(wholes),
        first_token_seconds=_first_token(kept),
        tokens_per_second=_speed(kept),
        acceptance_length=sum(stats.verified_tokens - 1 for stats in every) / rounds if rounds else 0.0,
        rounds=rounds,
        proposed=sum(stats.proposed for stats in every),
        accepted=sum(stats.accepted for stats in every),
        drafters=_drafters(every),
        plain_rounds=dict(sum((Counter(stats.plain_rounds) for stats in every), Counter[str]()).most_common()),
        divergent=len(runs) - sum(same),
    )


def _same_text(mine: Sequence[Run], theirs: Sequence[Run]) -> bool:
    """Tell whether every repetition, of plain decoding too, generated the tokens of plain decoding's first run."""
    return all(run.tokens == theirs[0].tokens for run in (*mine, *theirs))


def _ratios(mine: Runs, base: Runs, seconds: Callable[[Run], float]) -> list[float]:
    """Return a baseline's seconds / an arm's by repetition, sorted."""
    pairs = zip(_by_repetition(base, seconds), _by_repetition(mine, seconds), strict=True)
    return sorted(theirs / ours for theirs, ours in pairs)


def _by_repetition(runs: Runs, value: Callable[[Run], float]) -> list[float]:
    return [sum(value(run) for run in repetition) for repetition in zip(*runs, strict=True)]


_decoding, _whole = attrgetter("seconds"), attrgetter("whole_seconds")


def _first_token(runs: Runs) -> float:
    """Return the time to first token in seconds: the median over repetitions of the mean over turns."""
    turns = _by_repetition(runs, lambda run: len(run.stats))
    return median(s / n for s, n in zip(_by_repetition(runs, lambda run: run.first_seconds), turns, strict=True))


def _speed(runs: Runs) -> float:
    """Return tokens per second after the first token of each turn: the median over repetitions."""
    tokens = _by_repetition(runs, lambda run: len(run.tokens) - len(run.stats))
    return median(count / seconds for count, seconds in zip(tokens, _by_repetition(runs, _decoding), strict=True))


def _drafters(every: Iterable[Stats]) -> dict[str, DrafterCount]:
    """Return each drafter's counts, the most used drafter first."""
    counts: dict[str, DrafterCount] = {}
    for stats in every:
        for name, count in stats.drafters.items():
            mine = counts.setdefault(name, DrafterCount())
            mine.rounds += count.rounds
            mine.proposed += count.proposed
            mine.accepted += count.accepted
    return dict(sorted(counts.items(), key=lambda item: -item[1].rounds))
