"""Choose which turns to keep when a conversation exceeds the context: the most recent ones, each complete."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .messages import Message


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the index where each turn begins: a turn is a user message and everything up to the next user message.

    Leading system messages belong to no turn. Messages between them and the first user message form a turn.
    """
    head = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    return [place for place in range(head, len(messages)) if place == head or messages[place].role == "user"]


def without_oldest(
    messages: Sequence[Message], *, fits: Callable[[tuple[Message, ...]], bool]
) -> tuple[tuple[Message, ...], int]:
    """Drop the fewest oldest turns that make the messages fit; return the rest and the number of dropped turns.

    All turns are dropped if none can be kept. Leading system messages always stay. fits: called O(log turns) times;
    it must be monotonic, so that messages which fit also fit with fewer turns.
    """
    starts = turn_starts(messages)
    head = tuple(messages[: starts[0]]) if starts else tuple(messages)

    def kept(count: int) -> tuple[Message, ...]:
        return (*head, *messages[starts[count] :]) if count < len(starts) else head

    count = bisect_left(range(len(starts)), True, key=lambda count: fits(kept(count)))
    return kept(count), count
