"""Ctrl-C during an answer: it stops between two chunks, so nothing is left half-done. Knows nothing about sessions."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import closing
from types import FrameType
from typing import TypeVar, cast

__all__ = ["until_interrupted"]

_Item = TypeVar("_Item")


def until_interrupted(items: Iterator[_Item]) -> Generator[_Item]:
    """Yield from `items` and close them; after Ctrl-C raise KeyboardInterrupt before the next item is asked for.

    Until the first item (the prompt is being read, which may take long) Ctrl-C interrupts at once, and so does a
    second Ctrl-C.
    """
    with closing(cast("Generator[_Item]", items)):
        for item in items:
            yield item
            break
        with _Deferred() as deferred:
            for item in items:
                yield item
                deferred.check()


class _Deferred:
    """While entered, the first Ctrl-C is only remembered. Where Ctrl-C was ignored or handled before, it stays so."""

    def __init__(self) -> None:
        self._asked = False
        self._active = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> _Deferred:
        if self._active:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
