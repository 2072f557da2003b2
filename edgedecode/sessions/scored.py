"""Answers that a function scores while they are written: the better ones go on in the place of the worse.

This is sequential Monte Carlo (Lew, 2306.03081; Puri, 2502.01618) with the model's own draws as proposals: systematic
resampling when the effective number of answers is below half of them.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields

import numpy as np

from edgedecode.decoding.branches import Branch
from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError, InputError, cause
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Reply

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Scored:
    """A function of an answer's text so far, called where the text ends with `after` and where the answer ends.

    Its value is the logarithm of a weight: answers are as frequent as the model makes them, times e to the power of
    their last score, the more exactly the more answers there are. It is called within a round, when the session cannot
    be used.
    """

    function: Callable[[str], float]
    after: str | tuple[str, ...] = "\n"

    def check(self, count: int, sampling: SamplingOptions, *, rows: int, needed: int, context: int) -> None:
        """Raise InputError or CapabilityError for answers that cannot be scored together.

        rows: of logits in a pass. needed: positions of the context if all answers have their most tokens.
        """
        if count < 2 or sampling.greedy:
            raise InputError("a score chooses among different answers: ask for 2 or more, with a temperature")
        if sampling.mirostat:
            raise CapabilityError(
                "an answer cannot take over another's surprise limit: leave out Mirostat, or the score"
            )
        if count > rows:
            raise InputError(
                f"{count} scored answers need a row each and {rows} are planned: open the session with "
                f"SessionDetails(samples={count})"
            )
        if needed > context:
            raise InputError(
                f"{count} scored answers may need {needed} positions and the context has {context}: lower max_tokens, "
                f"or raise SessionOptions.context"
            )

    def particles(self, branches: Sequence[Branch], replies: list[Reply], *, reply: Callable[[], Reply]) -> "Particles":
        """Return what scores these answers to one prompt, which have not begun; as `Particles`."""
        return Particles(self, branches, replies, reply=reply)

    def of(self, text: str) -> float:
        """Return the score of a text. Raises InputError if the function raises, or returns no finite number."""
        try:
            score = float(self.function(text))
        except Exception as error:
            raise InputError(f"the score's function failed: {type(error).__name__}: {cause(error)}") from error
        if not np.isfinite(score):
            raise InputError(f"the score of {text[-30:]!r} is {score}: it has to be a finite number")
        return score


class Particles:
    """The answers' chunks, which are shown at the end, and their weights since they were last equal."""

    def __init__(
        self, scored: Scored, branches: Sequence[Branch], replies: list[Reply], *, reply: Callable[[], Reply]
    ) -> None:
        """replies: of the branches; those of answers that take over another's text are replaced. reply: begins one."""
        count, seed = len(branches), branches[0].stats.seed or 0
        self.chunks: list[list[Chunk]] = [[] for _ in range(count)]
        self._scored, self._branches, self._replies, self._reply = scored, branches, replies, reply
        self._prompt, self._noise = len(branches[0].tokens), Noise(seed, stream=2)
        self._scores, self._weights = [0.0] * count, np.zeros(count)

    def add(self, number: int, chunks: Sequence[Chunk]) -> None:
        """Add a round's chunks of an answer, and score it if it ends with them or one of its parts does."""
        self.chunks[number] += chunks
        text = self._replies[number].text
        if self._branches[number].done or (any(each.text for each in chunks) and text.endswith(self._scored.after)):
            score = self._scored.of(text)
            self._weights[number] += score - self._scores[number]
            self._scores[number] = score

    def resample(self) -> None:
        """Draw the answers that go on if the weights differ too much; at the end, if they differ at all."""
        p = np.exp(self._weights - self._weights.max())
        p /= p.sum()
        count = len(p)
        if (p @ p) * count <= (1 + _ROUNDING if all(each.done for each in self._branches) else 2):
            return
        self._weights[:] = 0
        points = (self._noise.random() + np.arange(count)) / count
        drawn = np.minimum(np.searchsorted(np.cumsum(p), points, side="right"), count - 1)
        copies = np.bincount(drawn, minlength=count)
        free = iter(np.flatnonzero(copies == 0).tolist())
        for parent in np.flatnonzero(copies > 1).tolist():
            for _ in range(copies[parent] - 1):
                self._copy(parent, next(free))

    def _copy(self, parent: int, child: int) -> None:
        """Let an answer go on after another's text, with noise of its own. Their rows are the same from then on."""
        source, branch = self._branches[parent], self._branches[child]
        branch.tokens, branch.rows, branch.done = list(source.tokens), list(source.rows), source.done
        for each in fields(Stats):
            if each.name != "seed":
                setattr(branch.stats, each.name, deepcopy(getattr(source.stats, each.name)))
        self.chunks[child], self._scores[child] = list(self.chunks[parent]), self._scores[parent]
        answer = branch.tokens[self._prompt :]
        self._replies[child] = self._reply()
        self._replies[child].say(tuple(answer), TARGET_SOURCE)
        branch.setting.sampler.begin(branch.tokens, generated=len(answer))
        if branch.setting.constraint is not None and not branch.done:
            branch.setting.constraint.begin(branch.tokens[: self._prompt])
            branch.setting.constraint.extend(answer)
