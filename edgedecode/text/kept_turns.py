"""Which turns of a conversation are kept where all of them do not fit the context: the newest, and whole ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .messages import Message

__all__ = ["turn_starts", "without_oldest"]


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
