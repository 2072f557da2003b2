"""Ctrl-C during an answer: stop between two rounds, so that every token in the session has been shown."""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import cast

from edgedecode import Chunk
from edgedecode.sessions.chunks import TARGET_SOURCE

_INTERRUPTED = 130


def until_interrupted(chunks: Iterator[Chunk]) -> Generator[Chunk]:
    """Yield from `chunks` and close them; after Ctrl-C raise KeyboardInterrupt once the round has been yielded.

    A round ends with the target's own tokens: stopping before them would leave tokens in the session that were never
    shown. During prefill, which may take long, Ctrl-C interrupts at once, and so does a second Ctrl-C at any time.
    """
    with closing(cast("Generator[Chunk]", chunks)):
        for chunk in chunks:
            yield chunk
            break
        with _Deferred() as deferred:
            for chunk in chunks:
                yield chunk
                if chunk.source == TARGET_SOURCE:
                    deferred.check()


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """While entered, Ctrl-C ends the process at once. Use it only for work that cannot leave partial files.

    Needed while loading, where an engine's imports turn KeyboardInterrupt into other errors.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"edgedecode: interrupted\n")
    os._exit(_INTERRUPTED)


class _Deferred:
    """While entered, the first Ctrl-C only sets a flag. A handler other than Python's default is left in place."""

    def __init__(self) -> None:
        self._asked = False
        self._active = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> "_Deferred":
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
