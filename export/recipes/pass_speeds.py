"""Times passes of one and several tokens. Several models are interleaved, so that all see the same machine load."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.pass_timing import filled_state, timed_pass

__all__ = ["CONTEXT", "ROUNDS", "TURNS", "WIDTHS", "Speeds"]

WIDTHS = (1, 4, 8)
CONTEXT = 256
TURNS, ROUNDS = 3, 7
_WARM_UP = 2
_LEAD_IN = 8
"""Rows passed, untimed, before a pass is timed: behind another width the first ones are slow."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of passes by their width, all their rows scored."""

    samples: dict[int, list[float]] = field(default_factory=lambda: {width: [] for width in WIDTHS})

    @property
    def tokens_per_second(self) -> float:
        """Of plain decoding, the engine's part alone."""
        return 1 / median(self.samples[1])

    def c(self, width: int) -> float:
        """Return what a pass over `width` tokens costs, in passes over one: the median of each round's own ratio.

        A round's passes follow each other closely, so that what slows the machine down slows both.
        """
        return median(wide / one for wide, one in zip(self.samples[width], self.samples[1], strict=True))

    def take_turn(self, model: LanguageModel) -> None:
        """Time each width ROUNDS times, interleaved, behind 256 tokens (or what the context allows).

        A turn is a model's own: engines that are open together disturb each other's passes by spinning threads.
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
    """Return some ids: what a pass costs does not depend on which."""
    return [(7 * index + 5) % model.card.vocabulary_size for index in range(count)]
