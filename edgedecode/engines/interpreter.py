"""The Python that child processes run on, for what may crash or shall not stay in this process. Starts nothing."""

from __future__ import annotations

import sys

__all__ = ["interpreter"]


def interpreter() -> str | None:
    """Return the executable that runs this process; None where that is not a Python.

    A frozen application's executable is the application: it would start itself. An embedded interpreter has none.
    """
    return None if getattr(sys, "frozen", False) else sys.executable or None
