"""Times forward passes of an open model over a filled state."""

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from edgedecode.decoding.loop import prefill
from edgedecode.decoding.model import LanguageModel, Output, RowRequest, State


class Forward(Protocol):
    """A forward pass."""

    def forward(self, tokens: Sequence[int], state: State, *, rows: RowRequest = "last") -> Output: ...


def filled_state(model: LanguageModel, tokens: Sequence[int], *, room: int, rows: int) -> State:
    """Return a state that holds `tokens` and `room` free positions; `rows`: most rows of a pass with logits."""
    state = model.new_state(len(tokens) + room, rows=rows)
    prefill(model, state, tokens)
    return state


def timed_pass(model: Forward, state: State, tokens: Sequence[int], *, rows: RowRequest = "all") -> float:
    """Return the seconds of a forward pass over `tokens`, and roll the state back."""
    length = state.length
    started = perf_counter()
    model.forward(tokens, state, rows=rows)
    seconds = perf_counter() - started
    state.crop(length)
    return seconds
