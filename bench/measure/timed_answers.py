"""Answers prompts under equal conditions and measures tokens, seconds and the host overhead between passes.

A user's pair has learnt from earlier prompts. So the scheduler first answers some warm-up prompts, and each measured
request starts from the acceptance statistics learnt there; costs of passes are learnt throughout. Each request has a
session of its own, so that no repetition drafts from an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from edgedecode import Session, SessionOptions, Stats
from edgedecode.schedule.experience import Experience
from edgedecode.text.prompts import Prompt

from ..settings import SCHEDULED, Arm, Settings
from .timed import Pass, TimedPair


class HostGap(NamedTuple):
    """Host overhead between two target passes: sampling, verification, counting, text, the consumer, and drafting
    without the draft model's passes. `drafted`: both passes had a draft."""

    seconds: float
    drafted: bool


@dataclass(slots=True)
class Run:
    """One answer to a prompt, summed over its turns.

    `seconds`: wall clock from the end of prefill to the end of the answer. `whole_seconds`: the full request, with
    prefill. `first_seconds`: time to first token. `stats`: one entry per turn. `host`: one entry per round.
    `reading_seconds`: the draft model's prefill, which the predicted speed-up leaves out.
    """

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    whole_seconds: float = 0.0
    first_seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)
    host: list[HostGap] = field(default_factory=list)
    reading_seconds: float = 0.0


class Requests:
    """Answers prompts with an arm. Nothing else may use the pair until the measurement ends."""

    def __init__(self, timed: TimedPair, settings: Settings) -> None:
        self.timed, self.settings = timed, settings
        self._known = timed.pair.experience.as_dict()

    def warm_up(self, prompts: Sequence[Prompt], *, advance: Callable[[], None] = lambda: None) -> None:
        """Let the scheduler learn from these prompts, which should not be among the measured ones."""
        for prompt in prompts:
            answer(self.timed, prompt, arm=SCHEDULED, settings=self.settings)
            advance()
        self._known = self.timed.pair.experience.as_dict()

    def answer(self, prompt: Prompt, arm: Arm) -> Run:
        """Answer a prompt as if for the first time."""
        if arm.scheduled:
            self.restore()
        return answer(self.timed, prompt, arm=arm, settings=self.settings)

    def restore(self) -> None:
        """Reset the scheduler's acceptance statistics to those after the warm-up; keep its costs and its ledger.

        With a reset ledger, an account emptied by the warm-up would never fill, and one filled by it never empty.
        """
        pair = self.timed.pair
        known, pair.experience = pair.experience, Experience.from_dict(self._known)
        pair.experience.costs, pair.experience.ledger = known.costs, known.ledger
        for ledger in (known.ledger, *known.ledger.kinds.values()):
            ledger.empty_rounds = 0


def answer(timed: TimedPair, prompt: Prompt, *, arm: Arm, settings: Settings) -> Run:
    """Answer every turn of the prompt in a new session, so that nothing is cached between runs."""
    adapter, scale = settings.adapter or (None, 1.0)
    options = SessionOptions(
        sampling=settings.sampling,
        adapter=adapter,
        adapter_scale=scale,
        drafter=arm.drafter,
        draft_max=arm.length,
        context=settings.context,
        seed=settings.seed,
        grammar=settings.grammar,
    )
    run = Run()
    with timed.pair.session(options, messages=prompt.history) as session:
        for turn in prompt.turns:
            _turn(timed, session, turn, run=run, arm=arm, max_tokens=settings.max_tokens)
    return run


def host_gaps(target: Sequence[Pass], draft: Sequence[Pass]) -> list[HostGap]:
    """Return, for each target pass except the last, the seconds until the next one less the draft's passes."""
    gaps: list[HostGap] = []
    index = 0
    for before, after in pairwise(target):
        drafted = 0.0
        while index < len(draft) and draft[index].ended <= after.started:
            drafted += draft[index].seconds
            index += 1
        seconds = after.started - before.ended - drafted
        gaps.append(HostGap(seconds, drafted=before.width > 1 and after.width > 1))
    return gaps


def reading_seconds(target: Sequence[Pass], draft: Sequence[Pass]) -> float:
    """Return the seconds of the draft model's prefill: its passes before the first drafting round's target pass.

    Prefill runs in chunks. The last chunk yields the first drafted token; each further token takes another pass.
    """
    if len(target) < 2:
        return 0.0
    passes = [item for item in draft if item.ended <= target[1].started]
    steps = max(0, target[1].width - 2)  # the target pass covers the token before the draft, and the draft
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
    """Return the seconds of the draft model's prefill.

    With the scheduler, prefill may begin in any round; its passes are recognised by their width.
    """
    if not arm.scheduled:
        return reading_seconds(rounds, timed.draft_passes)
    return sum(item.seconds for item in timed.draft_passes if item.width > 2)
