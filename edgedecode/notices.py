"""What a user should hear although nothing failed: a choice that was made, a file that was made. Silent by default.

A program that wants them listens to the logger `edgedecode.notices`.
"""

from __future__ import annotations

import logging

__all__ = ["NOTICES", "notice"]

NOTICES = "edgedecode.notices"
"""The logger's name."""


def notice(text: str) -> None:
    """Tell whoever listens, one line."""
    logging.getLogger(NOTICES).info("%s", " ".join(text.split()))
