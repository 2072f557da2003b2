"""Which turns are kept in a full context: the system messages and as many of the newest turns as fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgedecode.text.messages import Message
from edgedecode.text.transcript import turn_starts, without_oldest

SYSTEM = Message("system", "be short")


def turn(number: int) -> tuple[Message, Message]:
    return Message("user", f"question {number}"), Message("assistant", f"answer {number}")


def talk(turns: int, *, system: bool = True) -> tuple[Message, ...]:
    return (*([SYSTEM] if system else []), *(message for number in range(turns) for message in turn(number)))


def test_turn_starts_are_the_users_messages() -> None:
    tool = (Message("user", "a"), Message("assistant", "b"), Message("tool", "c"), Message("assistant", "d"))
    assert turn_starts((SYSTEM, SYSTEM, *tool, *turn(1))) == [2, 6]
    assert turn_starts(talk(2, system=False)) == [0, 2]
    assert turn_starts((SYSTEM, Message("assistant", "welcome"), *turn(1))) == [1, 2]
    assert turn_starts([SYSTEM]) == turn_starts([]) == []


@given(turns=some.integers(0, 40), most=some.integers(0, 90), system=some.booleans())
def test_without_oldest_keeps_as_many_of_the_newest_turns_as_fit(turns: int, most: int, *, system: bool) -> None:
    messages, attempts = talk(turns, system=system), []

    def fits(kept: tuple[Message, ...]) -> bool:
        attempts.append(kept)
        return len(kept) <= most

    kept, dropped = without_oldest(messages, fits=fits)
    head = messages[: int(system)]
    assert kept == (*head, *messages[len(head) + 2 * dropped :])
    assert dropped == min(turns, max(0, -(-(len(messages) - most) // 2)))
    assert len(attempts) <= max(1, turns).bit_length()


@pytest.mark.parametrize("messages", [(), (SYSTEM,), talk(3)])
def test_without_oldest_keeps_the_system_messages_if_nothing_fits(messages: tuple[Message, ...]) -> None:
    kept, dropped = without_oldest(messages, fits=lambda _: False)
    assert kept == tuple(message for message in messages if message is SYSTEM)
    assert dropped == len(messages) // 2
