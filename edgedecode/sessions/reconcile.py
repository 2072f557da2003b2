"""Bringing a target's state in line with what the model is to see next: cut it, or shift what is kept."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.model import ShiftableState, State
from edgedecode.errors import CapabilityError
from edgedecode.text.kept_turns import moved_run

__all__ = ["check_shiftable", "reconcile"]


def reconcile(state: State, old: Sequence[int], new: Sequence[int], *, shift: bool) -> int:
    """Cut the state to what it shares with the `new` tokens; its settled positions hold the `old` ones.

    shift: keys and values of what is in `new` further down move there. Returns the number of tokens that moved.
    """
    old, shared = old[: state.length], 0
    end = min(len(old), len(new))
    while shared < end and old[shared] == new[shared]:
        shared += 1
    if shared < state.oldest_crop:
        shared = 0
    elif shift and isinstance(state, ShiftableState):
        down, run = moved_run(old, new, shared=shared)
        if run:
            state.crop(shared + down + run)
            state.shift(shared, shared + down)
            return run
    state.crop(shared)
    return 0


def check_shiftable(state: State) -> None:
    """Raise CapabilityError where keys and values cannot move down in the cache."""
    if not (isinstance(state, ShiftableState) and state.shiftable):
        raise CapabilityError(
            "keys and values cannot be shifted here: llama.cpp can, for models with rotary positions and --kv-type "
            "float16 or float32; --when-full drop reads what is kept again"
        )
