"""Answers prompts under equal conditions and measures tokens and seconds.

A user's pair has learnt from earlier prompts. So the scheduler first answers some warm-up prompts, and each measured
request starts from the acceptance statistics learnt there; costs of passes are learnt throughout. Each request has a
session of its own, so that no repetition drafts from an earlier one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from edgedecode import Pair, SessionDetails, SessionOptions, Stats
from edgedecode.schedule.experience import Experience
from edgedecode.text.prompts import Prompt

from ..settings import SCHEDULED, Arm, Settings


@dataclass(slots=True)
class Run:
    """One answer to a prompt, summed over its turns.

    `seconds`: wall clock from the first token to the end of the answer. `whole_seconds`: the full request, with
    prefill. `first_seconds`: time to first token. `stats`: one entry per turn.
    """

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    whole_seconds: float = 0.0
    first_seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)


class Requests:
    """Answers prompts with an arm. Nothing else may use the pair until the measurement ends."""

    def __init__(self, pair: Pair, settings: Settings) -> None:
        self.pair, self.settings = pair, settings
        self._known = pair.experience.as_dict()

    def warm_up(self, prompts: Sequence[Prompt], *, advance: Callable[[], None] = lambda: None) -> None:
        """Let the scheduler learn from these prompts, which should not be among the measured ones."""
        for prompt in prompts:
            answer(self.pair, prompt, arm=SCHEDULED, settings=self.settings)
            advance()
        self._known = self.pair.experience.as_dict()

    def answer(self, prompt: Prompt, arm: Arm) -> Run:
        """Answer a prompt as if for the first time."""
        if arm.scheduled:
            self.restore()
        return answer(self.pair, prompt, arm=arm, settings=self.settings)

    def restore(self) -> None:
        """Reset the scheduler's acceptance statistics to those after the warm-up; keep its costs and its ledger.

        With a reset ledger, an account emptied by the warm-up would never fill, and one filled by it never empty.
        """
        pair = self.pair
        known, pair.experience = pair.experience, Experience.from_dict(self._known)
        pair.experience.costs, pair.experience.ledger = known.costs, known.ledger
        for ledger in (known.ledger, *known.ledger.kinds.values()):
            ledger.empty_rounds = 0


def answer(pair: Pair, prompt: Prompt, *, arm: Arm, settings: Settings) -> Run:
    """Answer every turn of the prompt in a new session, so that nothing is cached between runs."""
    adapter, scale = settings.adapter or (None, 1.0)
    options = SessionOptions(
        sampling=settings.sampling,
        adapter=adapter,
        drafter=arm.drafter,
        draft_max=arm.length,
        context=settings.context,
        seed=settings.seed,
        grammar=settings.grammar,
        details=SessionDetails(adapter_scale=scale),
    )
    run = Run()
    with pair.session(options, messages=prompt.history) as session:
        for turn in prompt.turns:
            started = perf_counter()
            for chunk in session.stream(turn, max_tokens=settings.max_tokens):
                run.tokens += chunk.tokens
            seconds = perf_counter() - started
            run.whole_seconds += seconds
            run.seconds += seconds - session.stats.prefill_seconds
            run.first_seconds += session.stats.time_to_first_token
            run.stats.append(session.stats)
    return run
