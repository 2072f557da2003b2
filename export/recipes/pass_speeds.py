"""Times forward passes of one and several tokens. Models are interleaved so that all see the same machine load."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.pass_timing import filled_state, timed_pass

WIDTHS = (1, 4, 8)
CONTEXT = 256
TURNS, ROUNDS = 3, 7
"""Turns per model, and timed rounds per turn."""
_WARM_UP = 2
_LEAD_IN = 8
"""Warm-up rows before a pass is timed: the first ones after a change of width are slow."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds per forward pass with logits for all rows, by width."""

    samples: dict[int, list[float]] = field(default_factory=lambda: {width: [] for width in WIDTHS})

    @property
    def tokens_per_second(self) -> float:
        """Speed of plain decoding, without host overhead."""
        return 1 / median(self.samples[1])

    def c(self, width: int) -> float:
        """Return the cost of a pass over `width` tokens relative to a pass over one: the median of the rounds' ratios.

        Ratios are taken within a round because its passes run close together, under the same machine load.
        """
        return median(wide / one for wide, one in zip(self.samples[width], self.samples[1], strict=True))

    def take_turn(self, model: LanguageModel) -> None:
        """Time each width ROUNDS times, interleaved, after 256 tokens (or what the context allows).

        Only this model should be open: the spinning threads of other open engines disturb its passes.
        """
        length = min(CONTEXT, model.card.context - max(WIDTHS))
        state = filled_state(model, _tokens(model, length), room=max(WIDTHS), rows=max(WIDTHS))
        try:
            for number in range(-_WARM_UP, ROUNDS):
                for width in WIDTHS:
                    tokens = _tokens(model, width)
                    for _ in range(_LEAD_IN // width):
                        timed_pass(model, state, tokens)
                    seconds = timed_pass(model, state, tokens)
                    if number >= 0:
                        self.samples[width].append(seconds)
        finally:
            state.close()


def _tokens(model: LanguageModel, count: int) -> list[int]:
    """Return arbitrary ids: the cost of a pass does not depend on them."""
    return [(7 * index + 5) % model.card.vocabulary_size for index in range(count)]
