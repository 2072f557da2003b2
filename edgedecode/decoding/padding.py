"""Pads forward passes to widths whose rounding is identical.

`widths` ascend; if empty, nothing is padded. `room` is the number of rows that the state can still hold.
"""

from __future__ import annotations

from collections.abc import Sequence


def next_width(widths: Sequence[int], count: int, *, room: int) -> int | None:
    """Return the narrowest width that holds `count` rows and fits the room; None: no width does."""
    return next((width for width in widths if count <= width <= room), None)


def usable_context(capacity: int, widths: Sequence[int]) -> int:
    """Return the most tokens of a sequence: its last pass processes one of them, padded to the narrowest width."""
    return capacity - max(0, min(widths, default=1) - 2)


def prompt_rows(unread: int, *, widths: Sequence[int], room: int, most: int) -> int:
    """Return how many of the `unread` tokens the next pass prefills. All of them: it is the last and may be padded.

    most: the limit of a pass without padding.
    """
    if not widths:
        return min(unread, most)
    if next_width(widths, unread, room=room) is not None:
        return unread
    return max(width for width in widths if width <= unread)


def draft_room(room: int, *, widths: Sequence[int]) -> int:
    """Return the longest draft after one pending token in a pass that fits the room."""
    return max((width for width in widths if width <= room), default=1) - 1


def padded_rows(unread: int, drafted: int, *, widths: Sequence[int], room: int) -> tuple[int, range]:
    """Return the width of a pass over `unread` tokens and a draft, and the rows whose logits it computes.

    Both numbers of rows are in `widths`, because the rounding of the head's kernels depends on the number of logits
    rows. The range contains the rows unread - 1 to unread + drafted - 1. There must be a width that fits: see
    `prompt_rows` and `draft_room`.
    """
    count = unread + drafted
    if not widths:
        return count, range(unread - 1, count)
    width = next_width(widths, count, room=room)
    asked = next_width(widths, 1 + drafted, room=room)
    assert width is not None
    assert asked is not None
    start = min(unread - 1, width - asked)
    return width, range(start, start + asked)
