"""The memory budget: every allocation holds a lease, and a refusal shows the whole table before anything is allocated.

Knows bytes and names, not what they are for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from edgedecode.errors import BudgetExceeded, InputError
from edgedecode.turns import FairLock

__all__ = ["Budget", "Lease", "format_nbytes", "parse_nbytes", "peak_nbytes", "resident_nbytes"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class Lease:
    """A named share of a budget. Releases itself when used as a context manager; `release` is idempotent.

    `release` takes no lock: finalizers call it, in any thread and in the middle of anything.
    """

    __slots__ = ("_budget", "name", "nbytes", "priority", "reclaim")

    def __init__(
        self, budget: Budget, name: str, *, nbytes: int, priority: int, reclaim: Callable[[], None] | None
    ) -> None:
        self._budget: Budget | None = budget
        self.name = name
        self.nbytes = nbytes
        self.priority = priority
        self.reclaim = reclaim

    def resize(self, nbytes: int) -> None:
        """Grow or shrink to `nbytes`. Raises BudgetExceeded, the lease unchanged, when the growth does not fit."""
        budget = self._budget
        if budget is None:
            raise ValueError(f"lease {self.name!r} was released")
        budget._lock.run(lambda: budget._resize(self, nbytes))

    @property
    def held(self) -> bool:
        return self._budget is not None

    def release(self) -> None:
        """Give the bytes back."""
        self._budget = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Budget:
    """A hard limit in bytes (None: none) over the sum of all leases. Threads may share it."""

    def __init__(self, limit_nbytes: int | None = None) -> None:
        if limit_nbytes is not None and limit_nbytes <= 0:
            raise InputError(f"the memory budget must be positive, not {limit_nbytes}")
        self.limit_nbytes = limit_nbytes
        self._lock = FairLock()
        self._leases: list[Lease] = []
        """Written under the lock; those that were released since are among them."""

    @property
    def used_nbytes(self) -> int:
        """Sum of all leases."""
        return sum(lease.nbytes for lease in self._leases if lease.held)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases held now, oldest first."""
        return tuple(lease for lease in self._leases if lease.held)

    def reserve(self, name: str, nbytes: int, *, priority: int = 0, reclaim: Callable[[], None] | None = None) -> Lease:
        """Lease `nbytes` before allocating them.

        When they do not fit, holders of a lower `priority` that gave a `reclaim` callback are asked, lowest first, to
        release or shrink theirs. Raises BudgetExceeded with the whole table when that is not enough.
        """
        if nbytes < 0:
            raise ValueError(f"lease {name!r} of {nbytes} bytes")
        lease = Lease(self, name, nbytes=nbytes, priority=priority, reclaim=reclaim)
        self._lock.run(lambda: self._add(lease))
        return lease

    def table(self, request: str = "", nbytes: int = 0) -> str:
        """Render the leases, a line each, largest first, with the request (if any), the sum and the limit."""
        rows = [(lease.name, lease.nbytes) for lease in sorted(self.leases, key=lambda lease: -lease.nbytes)]
        if request:
            rows.append((f"{request} (asked for)", nbytes))
        rows.append(("sum", self.used_nbytes + nbytes))
        if self.limit_nbytes is not None:
            rows.append(("budget", self.limit_nbytes))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {format_nbytes(value):>10}" for name, value in rows)

    def _add(self, lease: Lease) -> None:
        self._make_room(lease.name, lease.nbytes, priority=lease.priority)
        self._leases = [*self.leases, lease]

    def _make_room(self, name: str, nbytes: int, *, priority: int) -> None:
        if self.limit_nbytes is None:
            return
        for lease in sorted(self.leases, key=lambda lease: lease.priority):
            if self.used_nbytes + nbytes <= self.limit_nbytes:
                return
            if lease.reclaim is not None and lease.priority < priority:
                lease.reclaim()
        if self.used_nbytes + nbytes > self.limit_nbytes:
            raise BudgetExceeded(
                f"{name} needs {format_nbytes(nbytes)}, but only "
                f"{format_nbytes(max(0, self.limit_nbytes - self.used_nbytes))} of the "
                f"{format_nbytes(self.limit_nbytes)} budget are free: raise --memory, shorten the context "
                f"(--ctx-size), or drop the draft model (--drafter ngram)",
                table=self.table(name, nbytes),
                needed_nbytes=self.used_nbytes + nbytes,
            )

    def _resize(self, lease: Lease, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"lease {lease.name!r} of {nbytes} bytes")
        if nbytes > lease.nbytes:
            self._make_room(lease.name, nbytes - lease.nbytes, priority=lease.priority)
        lease.nbytes = nbytes


def format_nbytes(nbytes: int) -> str:
    """Render bytes in decimal megabytes, as `12.3 MB`."""
    return f"{nbytes / 1e6:.1f} MB"


def parse_nbytes(text: str) -> int:
    """Read a size such as 800MB, 1.5G, 512MiB or 1000000. Raises InputError."""
    cleaned = text.strip().upper().removesuffix("B")
    digits = cleaned.rstrip("KMGI")
    unit = _UNITS.get(cleaned[len(digits) :])
    try:
        value = float(digits)
    except ValueError:
        value = 0.0
    if unit is None or not 0 < value < 1e15:
        raise InputError(f"{text!r} is no size: write for example 800MB, 1.5GB or 512MiB")
    return int(value * unit)


def resident_nbytes() -> int | None:
    """Return what this process alone would hold of memory: pages it shares with others count whole.

    In bytes, as `peak_nbytes` counts them; None where the system does not tell.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
    except (OSError, StopIteration, ValueError):
        return None


def peak_nbytes() -> int | None:
    """Return the largest resident size this process ever had, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    try:
        # Not getrusage: its peak survives exec, so that a child of a large process would report its parent's.
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
