"""Shared by the verbs of the export: log and signal setup."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from edgedecode.errors import EdgeDecodeError
from edgedecode.user_notices import NOTICES, NoticeLines

from .signals import ending_on_sigterm


@contextmanager
def pack_is_there(line: str) -> Iterator[None]:
    """Prefix errors with `line`, which tells the user that the pack was made before the failure."""
    try:
        yield
    except EdgeDecodeError as error:
        message, *others = error.args
        error.args = (f"{line}: {message}", *others)
        raise
    except BrokenPipeError:  # the output was closed
        raise
    except OSError as error:
        error.strerror = f"{line}: {error.strerror or error}"
        raise


@contextmanager
def quiet(*, debug: bool) -> Iterator[None]:
    """Silence libraries unless --debug is given, and turn SIGTERM into SystemExit, so that cleanup runs."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s" if debug else "edgedecode: %(message)s")
    logging.getLogger("edgedecode").setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("transformers").setLevel(logging.INFO if debug else logging.ERROR)
    with ending_on_sigterm():
        yield


@contextmanager
def notices_shown() -> Iterator[None]:
    """Print the core's notices to standard error, one line each, unless a handler is installed already."""
    logger = logging.getLogger(NOTICES)
    if logger.handlers:
        yield
        return
    lines = NoticeLines()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # with --debug, the root logger would print them again
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate
