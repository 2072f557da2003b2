"""What a user should hear although nothing failed: a choice that was made, a file that was made. Silent by default.

A program that wants them listens to the logger `edgedecode.notices`.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["NOTICES", "NoticeLines", "notice"]

NOTICES = "edgedecode.notices"
"""The logger's name."""


def notice(text: str) -> None:
    """Tell whoever listens, one line."""
    logging.getLogger(NOTICES).info("%s", " ".join(text.split()))


class NoticeLines(logging.Handler):
    """Writes them to whatever standard error is at that moment, a line each, as errors are shown."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"edgedecode: {record.getMessage()}\n")
        sys.stderr.flush()
