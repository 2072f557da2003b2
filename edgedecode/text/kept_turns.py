"""Which turns of a conversation are kept where all of them do not fit the context: the newest, and whole ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .messages import Message

__all__ = ["moved_run", "turn_starts", "without_oldest"]

LEAST_RUN = 32
"""Tokens: a shorter run that occurs in both conversations may be chance, and is soon read again."""


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return where each turn begins: a message of the user with all that follows until the next one.

    The system messages at the start belong to no turn; what stands between them and the user's first is one.
    """
    head = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    return [place for place in range(head, len(messages)) if place == head or messages[place].role == "user"]


def without_oldest(
    messages: Sequence[Message], *, fits: Callable[[tuple[Message, ...]], bool]
) -> tuple[tuple[Message, ...], int]:
    """Return the messages without as few of the oldest turns as it takes to fit, and how many turns were dropped.

    Without every turn where none can be kept. The system messages at the start always stay. fits: asked a few times
    only; whoever fits must fit with fewer turns too.
    """
    starts = turn_starts(messages)
    head = tuple(messages[: starts[0]]) if starts else tuple(messages)

    def kept(count: int) -> tuple[Message, ...]:
        return (*head, *messages[starts[count] :]) if count < len(starts) else head

    count = bisect_left(range(len(starts)), True, key=lambda count: fits(kept(count)))
    return kept(count), count


def moved_run(old: Sequence[int], new: Sequence[int], *, shared: int) -> tuple[int, int]:
    """Find the longest run of old tokens that begins at new[shared]: how far down it has moved, and its length.

    shared: tokens that both begin with. (0, 0): no run of `LEAST_RUN` tokens, or none that moved.
    """
    best = (0, 0)
    for start in range(shared + 1, len(old) - LEAST_RUN + 1):
        length = min(len(old) - start, len(new) - shared)
        if length <= best[1]:
            break
        run = next((place for place in range(length) if old[start + place] != new[shared + place]), length)
        if run >= LEAST_RUN and run > best[1]:
            best = (start - shared, run)
    return best
