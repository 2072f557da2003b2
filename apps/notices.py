"""Shows the core's notices on standard error, a line each, as errors are shown, and a bar of long work."""

from __future__ import annotations

import logging

from edgedecode.notices import NOTICES, NoticeLines, show_work

from .progress import progress

__all__ = ["show_notices"]


def show_notices() -> None:
    """Show notices from now on, and bars of long work on a terminal. Idempotent."""
    show_work(progress)
    logger = logging.getLogger(NOTICES)
    if not any(isinstance(handler, NoticeLines) for handler in logger.handlers):
        logger.addHandler(NoticeLines())
    logger.setLevel(logging.INFO)
    logger.propagate = False  # who shows the other logs would show these twice
