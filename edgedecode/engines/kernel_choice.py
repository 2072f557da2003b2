"""Which kernels a runtime with kernels of its own uses: by the environment, or for a block of code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

KERNELS = "EDGEDECODE_KERNELS"
_WANTED: ContextVar[str] = ContextVar("kernels", default="")


def wanted_kernels() -> str:
    """Return `engine`, the name of an instruction set, or `auto`."""
    return _WANTED.get() or os.environ.get(KERNELS, "") or "auto"


@contextmanager
def engine_kernels() -> Iterator[None]:
    """Make models that this thread opens meanwhile use the engine's own kernels; other threads are not affected."""
    token = _WANTED.set("engine")
    try:
        yield
    finally:
        _WANTED.reset(token)
