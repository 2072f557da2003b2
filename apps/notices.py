"""Shows the core's notices on standard error, a line each, as errors are shown."""

from __future__ import annotations

import logging
import sys

from edgedecode.notices import NOTICES

__all__ = ["show_notices"]


class _Lines(logging.Handler):
    """Writes to whatever standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"edgedecode: {record.getMessage()}", file=sys.stderr, flush=True)


def show_notices() -> None:
    """Show notices from now on. Idempotent."""
    logger = logging.getLogger(NOTICES)
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
    logger.setLevel(logging.INFO)
    logger.propagate = False  # who shows the other logs would show these twice
