"""Limit one rendering of a chat template: bytes allocated, steps, and CPU time.

Results that can be many times larger than their operands are charged before they are computed, all others afterwards.
"""

import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from jinja2.exceptions import SecurityError

STEPS = 1_000_000
"""Loop iterations, calls, filters and comparisons: a conversation of hundreds of messages takes some thousands."""
SECONDS = 5.0
"""CPU time of the thread."""
STEP_ELEMENTS, STEP_CHARACTERS = 16, 4096
"""List elements and characters that count as one step."""
ELEMENT_NBYTES = 80
"""A new list element: its pointer and the header of a string."""
MOST_BITS = 4096
"""Length of the largest integer that a template may compute."""
WIDEST = 4
"""Bytes of the widest character."""


class Meter:
    """The remaining allowance of one rendering. Its methods raise SecurityError when it is used up."""

    __slots__ = ("_ends", "_left", "_most", "_steps")

    def __init__(self, nbytes: int) -> None:
        self._left = self._most = nbytes
        self._steps = STEPS
        self._ends = time.thread_time() + SECONDS

    def take(self, nbytes: int) -> None:
        """Charge allocated bytes."""
        self._left -= nbytes
        if self._left < 0:
            raise SecurityError(f"it allocates more than the {self._most} bytes that these messages allow")

    def step(self, count: int = 1) -> None:
        """Charge a loop iteration, a call, a filter or a comparison: several steps if it works on much data."""
        self._steps -= count
        if self._steps < 0:
            raise SecurityError(f"it takes more than {STEPS} steps")
        if time.thread_time() > self._ends:
            raise SecurityError(f"it takes more than {SECONDS:.0f} seconds")

    def keep(self, value: object) -> None:
        """Charge a new value whose elements already exist."""
        self.take(sys.getsizeof(value))
        if isinstance(value, (list, tuple, Mapping)):
            self.take(ELEMENT_NBYTES * len(value))
            self.text_bound(value)

    def text_bound(self, *values: object) -> int:
        """Return an upper bound of the size of the values' text in bytes; shared parts count each time they occur.

        Raises SecurityError if it exceeds the rendering's total allowance.
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
    """Limit renderings in this block to `nbytes` allocated bytes."""
    token = _METER.set(Meter(nbytes))
    try:
        yield
    finally:
        _METER.reset(token)


def meter() -> Meter:
    """Return the meter of the current rendering."""
    return _METER.get()


def text_of(value: object) -> str:
    """Return a value's text and charge it."""
    if not isinstance(value, str):
        meter().take(WIDEST * meter().text_bound(value))  # repr escapes unprintable characters
        value = str(value)
    meter().take(sys.getsizeof(value))
    return value


def each(values: Iterable[object], nbytes: int) -> Generator[object, None, None]:
    """Yield the values, charging a step and `nbytes` for each."""
    running = meter()
    for value in values:
        running.step()
        running.take(nbytes)
        yield value


def largest_product(operator: str, left: object, right: object) -> int:
    """Return an upper bound of the size of an operator's result. Raises SecurityError for too long an integer."""
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * max(1, right)}.get(operator, 0)
        if bits > MOST_BITS:
            raise SecurityError(f"it computes a number of {bits} bits")
        return 0
    if operator == "%" and isinstance(left, (str, bytes)):
        return _formatted((left, right))
    if operator == "*":
        value, count = (right, left) if isinstance(left, int) else (left, right)
        return meter().text_bound(value) * max(1, count) if isinstance(count, int) else 0
    return sys.getsizeof(left) + sys.getsizeof(right) if operator == "+" else 0


Arguments: TypeAlias = Sequence[Any]
"""The arguments of a filter or a method; the first is the value it works on."""


def largest(name: str, args: Arguments) -> int:
    """Return an upper bound of the size of a filter's or method's result, 0 if it cannot far exceed the arguments."""
    find = _BOUNDS.get(name)
    return 0 if find is None or not args else find(args)


def steps(name: str, args: Arguments) -> int:
    """Return how many steps a call of this filter or method is charged."""
    texts = [len(arg) for arg in args if isinstance(arg, (str, bytes))]
    elements = sum(len(arg) for arg in args if isinstance(arg, (list, tuple, Mapping)))
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


def _number(args: Arguments) -> int:
    return max((abs(arg) for arg in args if isinstance(arg, int)), default=0)


def _length(args: Arguments) -> int:
    return max((len(arg) for arg in args if isinstance(arg, (str, bytes))), default=0)


def _padded(args: Arguments) -> int:
    return WIDEST * _number(args[1:])


def _tabs(args: Arguments) -> int:
    return WIDEST * len(args[0]) * max(8, _number(args[1:]))


def _indented(args: Arguments) -> int:
    return WIDEST * (1 + str(args[0]).count("\n")) * max(4, _number(args[1:]), _length(args[1:]))


def _replaced(args: Arguments) -> int:
    text, old, new = map(str, args[:3])
    return WIDEST * (len(text) + text.count(old) * len(new))


def _joined(args: Arguments) -> int:
    text = meter().text_bound(*args)
    return WIDEST * (text + max(len(arg) for arg in args[:2]) * _length(args))


def _formatted(args: Arguments) -> int:
    bound = meter().text_bound(*args)
    text = args[0] if isinstance(args[0], str) else str(args[0])
    digits = max((int(digits[:9]) for digits in re.findall(r"\d+", text)), default=0)
    places = text.count("%") + text.count("{")
    return WIDEST * (len(text) + places * (max(digits, _number([*_parts(args[1:])])) + bound))


def _translated(args: Arguments) -> int:
    return WIDEST * len(args[0]) * meter().text_bound(*args[1:])


def _summed(args: Arguments) -> int:
    """Return an upper bound for summing lists: each partial sum is a copy."""
    if not isinstance(args[0], (list, tuple)) or not any(isinstance(arg, (list, tuple)) for arg in args[1:]):
        return 0
    return WIDEST * len(args[0]) * meter().text_bound(*args)


def _split(args: Arguments) -> int:
    return sys.getsizeof(args[0])


_PRODUCTS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})
"""Methods and filters that may compare each character with each character of their argument."""
_BOUNDS: Mapping[str, Callable[[Arguments], int]] = {
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
