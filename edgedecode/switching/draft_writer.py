"""Writes with the draft model as long as it is sure."""

from collections.abc import Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.policy import WHOLE
from edgedecode.drafters.model_drafter import join_state, usable_model, vocabulary_of
from edgedecode.drafters.source import DraftSetting
from edgedecode.sampling.probs import SharedNoise
from edgedecode.sampling.sampler import Sampler

from .rule import SIGNALS, STRETCH, SwitchRule

USER = "switch"
"""The name under which it uses the draft model's state."""


class DraftWriter:
    """Implements `Switching` with a session's draft model, whose state it shares with the drafters.

    Its tokens are drawn with the noise of the target's: the same seed and messages give the same text.
    It writes only while the draft model's state holds the whole conversation.
    Raises CapabilityError if there is no draft model or it cannot roll back, BudgetExceeded.
    """

    def __init__(self, setting: DraftSetting, rule: SwitchRule, *, noise: SharedNoise) -> None:
        self.rule = rule
        model = usable_model(setting)
        self._vocabulary = vocabulary_of(model, setting.vocabulary_size)
        self._rows = setting.vocabulary_size if self._vocabulary is None else len(self._vocabulary)
        self._size = setting.vocabulary_size
        self._ends, self._noise, self._row_draw = setting.ends, noise, setting.row_draw
        self._sampler = Sampler(setting.sampling, vocabulary_size=setting.vocabulary_size, row_draw=setting.row_draw)
        self._known = 0
        """Tokens of the context that the sampler has."""
        self._signal = SIGNALS[rule.signal]
        self._writes = True
        """Whether the draft model writes now; False: the target writes one token."""
        self._closed = False
        self.signals: list[float] = []
        """Receives the signal before each token that the draft model is asked for."""
        self.state = join_state(setting, model, USER)

    def begin(self, tokens: Sequence[int], *, generated: int = 0) -> None:
        self.state.begin(tokens)
        self._sampler.begin(tokens, generated=generated)
        self._known = len(tokens)
        self._writes = True

    def write(self, tokens: Sequence[int], limit: int) -> list[int]:
        if not self._writes or self._closed or not self.state.holds_all(len(tokens)):
            return []
        limit = self.state.reach(tokens, min(limit, STRETCH), WHOLE)
        if limit <= 0:
            return []
        self._sampler.extend(tokens[self._known :])
        self._known = len(tokens)
        written: list[int] = []
        row = self.state.catch_up(tokens)
        while not self._is_unsure(row):
            written.append(self._drawn(row, written, position=len(tokens) + len(written)))
            if len(written) == limit or written[-1] in self._ends:
                return written
            row = self.state.follow(written[-1:])
        self._writes = False
        return written

    def resume(self) -> None:
        self._writes = True

    def close(self) -> None:
        """Leave the draft model to others, also in the middle of an answer, which the target then ends alone."""
        self._closed = True
        self.state.leave(USER)

    def _is_unsure(self, row: FloatArray) -> bool:
        self.signals.append(self._signal(row[: self._rows], self._row_draw))
        return not self.signals[-1] < self.rule.up  # also for damaged logits

    def _drawn(self, row: FloatArray, path: Sequence[int], *, position: int) -> int:
        ids = None if self._vocabulary is None else self._vocabulary.ids
        return self._sampler.draw(row[: self._rows], path, key=self._noise.key_at(position), ids=ids)
