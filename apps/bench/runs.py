"""One prompt answered once, measured: tokens, seconds after the first token, and the host work between passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from edgedecode import SamplingOptions, Session, SessionOptions, Stats

from .prompts import Prompt
from .settings import Arm
from .timed import Pass, TimedPair

__all__ = ["HostGap", "Run", "answer", "host_gaps", "reading_seconds"]


class HostGap(NamedTuple):
    """All the host did between two passes of the target: sampling, verifying, keeping, counting, text, the consumer,
    and drafting without the draft model's own passes. `drafted`: both passes carried a draft."""

    seconds: float
    drafted: bool


@dataclass(slots=True)
class Run:
    """`seconds`: wall clock from the end of the pass that read the prompt to the end of the answer, over all turns.

    `stats` has one entry a turn. `host`: one entry per round. `reading_seconds`: what the draft model took to read
    the prompt, which the formula knows nothing about.
    """

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)
    host: list[HostGap] = field(default_factory=list)
    reading_seconds: float = 0.0


def answer(timed: TimedPair, prompt: Prompt, *, arm: Arm, max_tokens: int, context: int) -> Run:
    """Answer every turn of the prompt, greedily, in a session of its own: nothing is cached from run to run."""
    options = SessionOptions(
        sampling=SamplingOptions(), drafter=arm.drafter, draft_max=arm.length, context=context, seed=0
    )
    run = Run()
    with timed.pair.session(options, messages=prompt.history) as session:
        for turn in prompt.turns:
            _turn(timed, session, turn, run=run, max_tokens=max_tokens)
    return run


def host_gaps(target: Sequence[Pass], draft: Sequence[Pass]) -> list[HostGap]:
    """Return, for each pass of the target but the last, the seconds until the next one less the draft's passes."""
    gaps: list[HostGap] = []
    index = 0
    for before, after in pairwise(target):
        drafted = 0.0
        while index < len(draft) and draft[index].ended <= after.started:
            drafted += draft[index].seconds if draft[index].started >= before.ended else 0.0
            index += 1
        seconds = after.started - before.ended - drafted
        gaps.append(HostGap(seconds, drafted=before.width > 1 and after.width > 1))
    return gaps


def reading_seconds(target: Sequence[Pass], draft: Sequence[Pass]) -> float:
    """Return what the draft model took to read the prompt: its passes before the first drafting round's target pass.

    It reads in chunks; the last chunk gives the first drafted token, and every further one takes a pass more.
    """
    if len(target) < 2:
        return 0.0
    passes = [item for item in draft if item.ended <= target[1].started]
    steps = max(0, target[1].width - 2)  # the pass holds the token before the draft, and the draft
    return sum(item.seconds for item in passes[: len(passes) - steps])


def _turn(timed: TimedPair, session: Session, turn: str, *, run: Run, max_tokens: int) -> None:
    timed.clear()
    for chunk in session.stream(turn, max_tokens=max_tokens):
        run.tokens += chunk.tokens
    ended = perf_counter()
    rounds = timed.target.passes[-session.stats.rounds :]
    run.seconds += ended - rounds[0].ended
    run.stats.append(session.stats)
    run.host += host_gaps(rounds, timed.draft_passes)
    run.reading_seconds += reading_seconds(rounds, timed.draft_passes)
