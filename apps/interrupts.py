"""Ctrl-C during an answer: stop between two rounds, so that every token in the session has been shown."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
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
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    with closing(cast("Generator[Chunk]", chunks)):
        for chunk in chunks:
            yield chunk
            break
        with _handled(ask):
            for chunk in chunks:
                yield chunk
                if asked and chunk.source == TARGET_SOURCE:
                    raise KeyboardInterrupt


def leaving_at_once() -> AbstractContextManager[None]:
    """While entered, Ctrl-C ends the process at once. Use it only for work that cannot leave partial files.

    Needed while loading, where an engine's imports turn KeyboardInterrupt into other errors.
    """
    return _handled(_leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"edgedecode: interrupted\n")
    os._exit(_INTERRUPTED)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While entered, Ctrl-C calls a handler, unless another one than Python's default is in place."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
