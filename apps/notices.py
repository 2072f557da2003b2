"""Shows the core's notices and warnings on standard error, a line each, as errors are shown, and progress."""

from __future__ import annotations

import logging

from edgedecode.user_notices import NOTICES, NoticeLines, show_work

from .progress import progress

__all__ = ["show_notices"]


def show_notices() -> None:
    """Show notices, warnings and the progress of long work from now on. Idempotent."""
    show_work(progress)
    logger = logging.getLogger(NOTICES)
    for each in (logger, logging.getLogger("edgedecode")):
        if not any(isinstance(handler, NoticeLines) for handler in each.handlers):
            each.addHandler(NoticeLines())
    logger.setLevel(logging.INFO)
    logger.propagate = False  # who shows the other logs would show these twice
