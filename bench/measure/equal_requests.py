"""Requests under the same conditions each time: what was learnt from other prompts is known, the answers are not.

A user's steady state is a pair that has learnt from earlier prompts. So the scheduler answers some other prompts first,
unmeasured, and every measured request begins with what it knew then of drafts; what passes cost it goes on learning.
The stores that drafters share are emptied before each request, so that no repetition drafts from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedecode.engines.registry import drafter_names
from edgedecode.schedule.experience import Experience
from edgedecode.text.prompts import Prompt

from ..settings import PLAIN, Arm, Settings
from .synthetic import SyntheticSource
from .timed import TimedPair
from .timed_answers import Run, answer

__all__ = ["Requests"]


class Requests:
    """Answers prompts with an arm. The pair is this one's until the measurement ends.

    synthetic: the pair's source to which each prompt's own answer is told before it drafts.
    """

    def __init__(self, timed: TimedPair, settings: Settings, *, synthetic: SyntheticSource | None = None) -> None:
        self.timed, self.settings = timed, settings
        self._synthetic = synthetic
        self._recorded: dict[Prompt, list[tuple[int, ...]]] = {}
        self._known = timed.pair.experience.as_dict()

    def warm_up(self, prompts: Sequence[Prompt], *, advance: Callable[[], None] = lambda: None) -> None:
        """Let the scheduler learn from these prompts; they should be none of the measured ones."""
        for prompt in prompts:
            self._forget_answers()
            answer(self.timed, prompt, arm=self.settings.scheduled, settings=self.settings)
            advance()
        self._known = self.timed.pair.experience.as_dict()

    def answer(self, prompt: Prompt, arm: Arm) -> Run:
        """Answer a prompt as if it was never seen before."""
        self._forget_answers()
        if self._synthetic is not None and arm != PLAIN:
            self._synthetic.record(self._record(prompt))
        if arm.scheduled:
            self.restore()
        return answer(self.timed, prompt, arm=arm, settings=self.settings)

    def restore(self) -> None:
        """Let the scheduler know of drafts what it knew after the warm-up, and of costs all it has learnt since."""
        pair = self.timed.pair
        known, pair.experience = pair.experience, Experience.from_dict(self._known)
        pair.experience.costs = known.costs

    def _forget_answers(self) -> None:
        for name in drafter_names():
            self.timed.pair.drafter_source(name).close()

    def _record(self, prompt: Prompt) -> list[tuple[int, ...]]:
        if prompt not in self._recorded:
            self._recorded[prompt] = answer(self.timed, prompt, arm=PLAIN, settings=self.settings).turns
        return self._recorded[prompt]
