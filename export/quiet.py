"""Keeps libraries silent while a verb works, lets notices through, and makes a polite kill clean up."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from edgedecode.user_notices import NOTICES, NoticeLines

__all__ = ["notices_shown", "quiet"]


@contextmanager
def quiet(*, debug: bool) -> Iterator[None]:
    """Let libraries speak only with --debug, and make a polite kill an exception, so that nothing is left behind."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s" if debug else "edgedecode: %(message)s")
    logging.getLogger("edgedecode").setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("transformers").setLevel(logging.INFO if debug else logging.ERROR)
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not the main thread
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def notices_shown() -> Iterator[None]:
    """Show the core's notices on standard error, a line each, as errors are shown, unless something does already."""
    logger = logging.getLogger(NOTICES)
    if logger.handlers:
        yield
        return
    lines = NoticeLines()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # with --debug, the root shows these too
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
