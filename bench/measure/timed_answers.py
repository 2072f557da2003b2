"""Prompts answered under the same conditions each time, and measured: tokens, seconds, host work between passes.

A user's steady state is a pair that has learnt from earlier prompts. So the scheduler answers some other prompts first,
unmeasured, and every measured request begins with what it knew then of drafts; what passes cost it goes on learning.
The stores that drafters share are emptied before each request, so that no repetition drafts from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from edgedecode import Session, SessionOptions, Stats
from edgedecode.engines.registry import drafter_names
from edgedecode.schedule.experience import Experience
from edgedecode.text.prompts import Prompt

from ..settings import SCHEDULED, Arm, Settings
from .timed import Pass, TimedPair

__all__ = ["HostGap", "Requests", "Run", "answer", "host_gaps", "reading_seconds"]


class HostGap(NamedTuple):
    """All the host did between two passes of the target: sampling, verifying, keeping, counting, text, the consumer,
    and drafting without the draft model's own passes. `drafted`: both passes carried a draft."""

    seconds: float
    drafted: bool


@dataclass(slots=True)
class Run:
    """`seconds`: wall clock from the end of the pass that read the prompt to the end of the answer, over all turns.

    `whole_seconds` begin with the request, so they hold the reading of the prompts; `first_seconds` are what of them
    had passed when the first token was there. `stats` has one entry a turn. `host`: one entry per round.
    `reading_seconds`: what the draft model took to read prompts, which the formula knows nothing about.
    """

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    whole_seconds: float = 0.0
    first_seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)
    host: list[HostGap] = field(default_factory=list)
    reading_seconds: float = 0.0


class Requests:
    """Answers prompts with an arm. The pair is this one's until the measurement ends."""

    def __init__(self, timed: TimedPair, settings: Settings) -> None:
        self.timed, self.settings = timed, settings
        self._known = timed.pair.experience.as_dict()

    def warm_up(self, prompts: Sequence[Prompt], *, advance: Callable[[], None] = lambda: None) -> None:
        """Let the scheduler learn from these prompts; they should be none of the measured ones."""
        for prompt in prompts:
            self._forget_answers()
            answer(self.timed, prompt, arm=SCHEDULED, settings=self.settings)
            advance()
        self._known = self.timed.pair.experience.as_dict()

    def answer(self, prompt: Prompt, arm: Arm) -> Run:
        """Answer a prompt as if it was never seen before."""
        self._forget_answers()
        if arm.scheduled:
            self.restore()
        return answer(self.timed, prompt, arm=arm, settings=self.settings)

    def restore(self) -> None:
        """Let the scheduler know of drafts what it knew after the warm-up; costs and accounts go on.

        Else an account that the warm-up used up would never fill, and one that it filled never empty.
        """
        pair = self.timed.pair
        known, pair.experience = pair.experience, Experience.from_dict(self._known)
        pair.experience.costs, pair.experience.ledger = known.costs, known.ledger

    def _forget_answers(self) -> None:
        for name in drafter_names():
            self.timed.pair.drafter_source(name).close()


def answer(timed: TimedPair, prompt: Prompt, *, arm: Arm, settings: Settings) -> Run:
    """Answer every turn of the prompt in a session of its own: nothing is cached from run to run."""
    options = SessionOptions(
        sampling=settings.sampling,
        drafter=arm.drafter,
        draft_max=arm.length,
        context=settings.context,
        seed=settings.seed,
    )
    run = Run()
    with timed.pair.session(options, messages=prompt.history) as session:
        for turn in prompt.turns:
            _turn(timed, session, turn, run=run, arm=arm, max_tokens=settings.max_tokens)
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


def _turn(timed: TimedPair, session: Session, turn: str, *, run: Run, arm: Arm, max_tokens: int) -> None:
    timed.clear()
    started = perf_counter()
    tokens = [token for chunk in session.stream(turn, max_tokens=max_tokens) for token in chunk.tokens]
    ended = perf_counter()
    rounds = timed.target.passes[-session.stats.rounds :]
    run.tokens += tokens
    run.seconds += ended - rounds[0].ended
    run.whole_seconds += ended - started
    run.first_seconds += rounds[0].ended - started
    run.stats.append(session.stats)
    run.host += host_gaps(rounds, timed.draft_passes)
    run.reading_seconds += _reading(timed, rounds, arm)


def _reading(timed: TimedPair, rounds: Sequence[Pass], arm: Arm) -> float:
    """Return what the draft model took to read. A scheduler lets it begin when it will; passes of steps are narrow."""
    if not arm.scheduled:
        return reading_seconds(rounds, timed.draft_passes)
    return sum(item.seconds for item in timed.draft_passes if item.width > 2)
