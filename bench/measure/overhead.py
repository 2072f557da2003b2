"""Measures the overhead of edgedecode's loop: host overhead between passes, and its plain speed against bare loops.

The host overhead of a round is the time from the return of the target's `forward` to its next call, less the draft
model's `forward` calls: sampling, verification, `keep`, counting, detokenizing, stop strings, the consumer's loop and
the drafter's Python. Python code inside `forward` counts as engine time here, and shows in the comparison with the bare
loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

from edgedecode import SamplingOptions, SessionOptions

from ..loops.greedy_loop import GreedyLoop, LoopRun, time_loop
from ..settings import PLAIN, Arm, Settings, arms_of
from .timed import TimedPair
from .timed_answers import answer

__all__ = ["HostWork", "LoopRatio", "compare_loops", "measure_host_work"]


@dataclass(frozen=True, slots=True)
class HostWork:
    """Host overhead per round of one arm; for drafting arms, of the rounds that had a draft."""

    arm: str
    rounds: int
    median_seconds: float
    p90_seconds: float


@dataclass(frozen=True, slots=True)
class LoopRatio:
    """Our plain loop against another loop: its seconds / ours for the same tokens, the median over repetitions."""

    loop: str
    setting: str
    ratio: float
    ratios: tuple[float, ...]
    our_tokens_per_second: float
    tokens_per_second: float
    tokens: int
    same_tokens: int
    """Number of tokens that agree before the first difference."""


def measure_host_work(timed: TimedPair, *, settings: Settings, advance: Callable[[], None]) -> list[HostWork]:
    """Answer every prompt with every arm, interleaved, and return the host overhead of their rounds."""
    gaps: dict[Arm, list[float]] = {arm: [] for arm in arms_of(settings)}
    for _ in range(settings.repetitions):
        for prompt in settings.prompts:
            for arm, mine in gaps.items():
                run = answer(timed, prompt, arm=arm, settings=settings)
                mine += [gap.seconds for gap in run.host if gap.drafted or arm == PLAIN]
                advance()
    return [_host_work(arm, seconds) for arm, seconds in gaps.items()]


def compare_loops(
    timed: TimedPair, loops: Sequence[GreedyLoop], *, text: str, settings: Settings, advance: Callable[[], None]
) -> list[LoopRatio]:
    """Continue `text` by settings.max_tokens tokens with our loop and with each other one, interleaved."""
    prompt = timed.pair.tokenizer.encode(text, add_special=True)
    ours: list[LoopRun] = []
    theirs: list[list[LoopRun]] = [[] for _ in loops]
    for repetition in range(settings.repetitions + 1):
        # Our loop alternates between first and last, so that no loop always follows the same one.
        first = [_our_run(timed, text, settings)] if repetition % 2 else []
        others = [time_loop(loop, prompt, count=settings.max_tokens) for loop in loops]
        mine = first or [_our_run(timed, text, settings)]
        advance()
        if repetition:  # the first one is the warm-up
            ours += mine
            for runs, run in zip(theirs, others, strict=True):
                runs.append(run)
    return [_ratio(loop, ours, mine) for loop, mine in zip(loops, theirs, strict=True)]


def _our_run(timed: TimedPair, text: str, settings: Settings) -> LoopRun:
    options = SessionOptions(
        sampling=SamplingOptions(), drafter=PLAIN.drafter, context=settings.context, seed=0, ignore_eos=True
    )
    with timed.pair.session(options) as session:
        timed.clear()
        tokens = [token for chunk in session.complete(text, max_tokens=settings.max_tokens) for token in chunk.tokens]
        ended = perf_counter()
        first = timed.target.passes[-session.stats.rounds]
    return LoopRun(tuple(tokens), ended - first.ended)


def _ratio(loop: GreedyLoop, ours: Sequence[LoopRun], theirs: Sequence[LoopRun]) -> LoopRatio:
    ratios = [their.seconds_per_token / our.seconds_per_token for our, their in zip(ours, theirs, strict=True)]
    return LoopRatio(
        loop=loop.name,
        setting=loop.setting,
        ratio=median(ratios),
        ratios=tuple(sorted(ratios)),
        our_tokens_per_second=1 / median(run.seconds_per_token for run in ours),
        tokens_per_second=1 / median(run.seconds_per_token for run in theirs),
        tokens=len(ours[0].tokens),
        same_tokens=_agreeing(ours[0].tokens, theirs[0].tokens),
    )


def _agreeing(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((index for index, (mine, other) in pairs if mine != other), min(len(ours), len(theirs)))


def _host_work(arm: Arm, seconds: list[float]) -> HostWork:
    p90 = quantiles(seconds, n=10)[-1] if len(seconds) > 1 else sum(seconds)
    return HostWork(str(arm), len(seconds), median(seconds) if seconds else 0.0, p90)
