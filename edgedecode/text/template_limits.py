"""What one rendering of a chat template may take: bytes it makes, steps, and processor time.

What can be many times larger than what it is made of is charged before it is made, anything else once it is there.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from jinja2.exceptions import SecurityError

__all__ = ["Meter", "each", "largest", "largest_product", "meter", "metered", "steps", "text_of"]

STEPS = 1_000_000
"""Turns of loops, calls, filters and comparisons: a conversation of hundreds of messages takes some thousands."""
SECONDS = 5.0
STEP_ELEMENTS, STEP_CHARACTERS = 16, 4096
"""What is worked on in the time of a step."""
ELEMENT_NBYTES = 80
"""A new element of a list: its place, and what a string takes beside its characters."""
MOST_BITS = 4096
WIDEST = 4
"""Bytes of a character."""


class Meter:
    """The remaining budget of one rendering. Raises SecurityError when it is used up."""

    __slots__ = ("_ends", "_left", "_most", "_steps")

    def __init__(self, nbytes: int) -> None:
        self._left = self._most = nbytes
        self._steps = STEPS
        self._ends = time.thread_time() + SECONDS

    def take(self, nbytes: int) -> None:
        """Charge bytes that are made."""
        self._left -= nbytes
        if self._left < 0:
            raise SecurityError(f"it makes more than the {self._most} bytes that these messages allow")

    def step(self, count: int = 1) -> None:
        """Charge a turn of a loop, a call, a filter or a comparison: more than one step where it works on much."""
        self._steps -= count
        if self._steps < 0:
            raise SecurityError(f"it takes more than {STEPS} steps")
        if time.thread_time() > self._ends:
            raise SecurityError(f"it takes more than {SECONDS:.0f} seconds")

    def keep(self, value: object) -> None:
        """Charge a value that was made of others, which are there already."""
        self.take(sys.getsizeof(value))
        if isinstance(value, (list, tuple, Mapping)):
            self.take(ELEMENT_NBYTES * len(value))
            self.spelled(value)

    def spelled(self, *values: object) -> int:
        """Return a bound of what the values' text takes; a part that stands in several places is there several times.

        Raises SecurityError where that is more than a rendering may make.
        """
        total, left = 0, [*values]
        while left:
            part = left.pop()
            total += WIDEST * sys.getsizeof(part) if isinstance(part, int) else sys.getsizeof(part)
            if total > self._most:
                self.take(total)
            if isinstance(part, Mapping):
                left += part.keys()
                left += part.values()
            elif isinstance(part, (list, tuple)):
                left += part
        return total


_METER: ContextVar[Meter] = ContextVar("remaining bytes of the current rendering")


@contextmanager
def metered(nbytes: int) -> Iterator[None]:
    """Limit what is rendered in this block to `nbytes` bytes."""
    token = _METER.set(Meter(nbytes))
    try:
        yield
    finally:
        _METER.reset(token)


def meter() -> Meter:
    """Return the meter of the current rendering."""
    return _METER.get()


def text_of(value: object) -> str:
    """Return a value's text, charged."""
    if not isinstance(value, str):
        meter().take(WIDEST * meter().spelled(value))  # what cannot be printed is spelled as an escape
        value = str(value)
    meter().take(sys.getsizeof(value))
    return value


def each(values: Iterable[object], nbytes: int) -> Generator[object, None, None]:
    """Pass the values on, each a step that makes `nbytes`."""
    running = meter()
    for value in values:
        running.step()
        running.take(nbytes)
        yield value


def largest_product(operator: str, left: object, right: object) -> int:
    """Bound what an operator makes of two values. Raises SecurityError for a number that is far too long."""
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * max(1, right)}.get(operator, 0)
        if bits > MOST_BITS:
            raise SecurityError(f"it makes a number of {bits} bits")
        return 0
    if operator == "%" and isinstance(left, (str, bytes)):
        return _formatted((left, right))
    if operator == "*":
        value, count = (right, left) if isinstance(left, int) else (left, right)
        return meter().spelled(value) * max(1, count) if isinstance(count, int) else 0
    return sys.getsizeof(left) + sys.getsizeof(right) if operator == "+" else 0


Words: TypeAlias = Sequence[Any]
"""What a filter or a method is given, what it works on first."""


def largest(name: str, words: Words) -> int:
    """Bound what a filter or a method of this name makes, where that can be many times what it is given; else 0."""
    find = _BOUNDS.get(name)
    return 0 if find is None or not words else find(words)


def steps(name: str, words: Words) -> int:
    """Return how many steps a filter or a method of this name takes."""
    texts = [len(word) for word in words if isinstance(word, (str, bytes))]
    elements = sum(len(word) for word in words if isinstance(word, (list, tuple, Mapping)))
    characters = texts[0] * max(texts[1:], default=0) if name in _PRODUCTS and texts else sum(texts)
    return 1 + elements // STEP_ELEMENTS + characters // STEP_CHARACTERS


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the numbers and strings in these values."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _parts(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _parts(value)
        else:
            yield value


def _number(words: Words) -> int:
    return max((abs(word) for word in words if isinstance(word, int)), default=0)


def _length(words: Words) -> int:
    return max((len(word) for word in words if isinstance(word, (str, bytes))), default=0)


def _padded(words: Words) -> int:
    return WIDEST * _number(words[1:])


def _tabs(words: Words) -> int:
    return WIDEST * len(words[0]) * max(8, _number(words[1:]))


def _indented(words: Words) -> int:
    return WIDEST * (1 + str(words[0]).count("\n")) * max(4, _number(words[1:]), _length(words[1:]))


def _replaced(words: Words) -> int:
    text, old, new = map(str, words[:3])
    return WIDEST * (len(text) + text.count(old) * len(new))


def _joined(words: Words) -> int:
    spelled = meter().spelled(*words)
    return WIDEST * (spelled + max(len(word) for word in words[:2]) * _length(words))


def _formatted(words: Words) -> int:
    spelled = meter().spelled(*words)
    text = words[0] if isinstance(words[0], str) else str(words[0])
    digits = max((int(digits[:9]) for digits in re.findall(r"\d+", text)), default=0)
    places = text.count("%") + text.count("{")
    return WIDEST * (len(text) + places * (max(digits, _number([*_parts(words[1:])])) + spelled))


def _translated(words: Words) -> int:
    return WIDEST * len(words[0]) * meter().spelled(*words[1:])


def _summed(words: Words) -> int:
    """Bound what adding up lists makes: each sum is copied."""
    if not isinstance(words[0], (list, tuple)) or not any(isinstance(word, (list, tuple)) for word in words[1:]):
        return 0
    return WIDEST * len(words[0]) * meter().spelled(*words)


def _split(words: Words) -> int:
    return sys.getsizeof(words[0])


_PRODUCTS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})
"""Methods and filters that may look at each character once for each of what is sought."""
_BOUNDS: Mapping[str, Callable[[Words], int]] = {
    **dict.fromkeys(("batch", "center", "ljust", "rjust", "slice", "to_bytes", "zfill"), _padded),
    **dict.fromkeys(("format", "format_map"), _formatted),
    **dict.fromkeys(("list", "partition", "rpartition", "rsplit", "split", "splitlines"), _split),
    "expandtabs": _tabs,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "sum": _summed,
    "translate": _translated,
}
