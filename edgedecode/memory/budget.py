"""The memory budget: every allocation holds a lease, and a refusal shows the whole table before anything is allocated.

Knows bytes and names, not what they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from edgedecode.errors import BudgetExceeded
from edgedecode.turns import FairLock

from .limit import ASKED, Limit
from .sizes import decimals, format_nbytes

__all__ = ["Budget", "Lease"]


class Lease:
    """A named share of a budget. Releases itself when used as a context manager; `release` is idempotent.

    `release` takes no lock: finalizers call it, in any thread and in the middle of anything.
    """

    __slots__ = ("_budget", "fixed", "name", "nbytes", "priority", "reclaim")

    def __init__(self, budget: Budget, name: str, *, nbytes: int, priority: int, fixed: bool) -> None:
        self._budget: Budget | None = budget
        self.name = name
        self.nbytes = nbytes
        self.fixed = fixed
        self.priority = priority
        self.reclaim: Callable[[], None] | None = None
        """What its holder does, where it can, to release or shrink it for a higher priority."""

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
    """A hard limit (in bytes, or with what sets it; None: none) over the sum of all leases. Threads may share it."""

    def __init__(self, limit: int | Limit | None = None) -> None:
        self.limit = Limit(limit) if isinstance(limit, int) else limit
        self._lock = FairLock()
        self._leases: list[Lease] = []
        """Written under the lock; those that were released since are among them."""

    @property
    def limit_nbytes(self) -> int | None:
        return None if self.limit is None else self.limit.nbytes

    @property
    def used_nbytes(self) -> int:
        """Sum of all leases."""
        return sum(lease.nbytes for lease in self._leases if lease.held)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases held now, oldest first."""
        return tuple(lease for lease in self._leases if lease.held)

    def reserve(
        self,
        name: str,
        nbytes: int,
        *,
        priority: int = 0,
        fixed: bool = False,
        following: int = 0,
    ) -> Lease:
        """Lease `nbytes` before allocating them.

        When they do not fit, holders of a lower `priority` whose leases have a `reclaim` are asked, lowest first, to
        release or shrink theirs. Raises BudgetExceeded with the whole table when that is not enough.

        fixed: no choice of context or drafter makes it smaller. following: fixed bytes that will be asked for next, at
        least: a refusal then tells the budget that all of this takes.
        """
        if nbytes < 0:
            raise ValueError(f"lease {name!r} of {nbytes} bytes")
        lease = Lease(self, name, nbytes=nbytes, priority=priority, fixed=fixed)
        self._lock.run(lambda: self._add(lease, following=following))
        return lease

    def give_back(self) -> bool:
        """Have every holder that can do without its lease release or shrink it; tell whether any held something."""
        held = [lease for lease in self.leases if lease.reclaim is not None and lease.nbytes]
        for lease in held:
            if (reclaim := lease.reclaim) is not None:
                reclaim()
        return bool(held)

    def table(self, request: str = "", nbytes: int = 0) -> str:
        """Render the leases, a line each, largest first, with the request (if any), the sum and the limit."""
        held = sorted(self.leases, key=lambda lease: -lease.nbytes)
        rows = [(lease.name, lease.nbytes) for lease in held if lease.nbytes]
        if request:
            rows.append((f"{request} (asked for)", nbytes))
        rows.append(("sum", self.used_nbytes + nbytes))
        if self.limit is not None:
            rows.append((f"budget{_set_by(self.limit)}", self.limit.nbytes))
        width = max(len(name) for name, _ in rows)
        places = decimals(rows[-2][1], rows[-1][1]) if self.limit is not None else 1
        return "\n".join(f"  {name:<{width}}  {format_nbytes(value, places):>10}" for name, value in rows)

    def _add(self, lease: Lease, *, following: int) -> None:
        fixed = lease.nbytes + following if lease.fixed else 0
        self._make_room(lease.name, lease.nbytes, priority=lease.priority, fixed=fixed)
        self._leases = [*self.leases, lease]

    def _make_room(self, name: str, nbytes: int, *, priority: int, fixed: int = 0) -> None:
        if self.limit is None:
            return
        limit = self.limit
        for lease in sorted(self.leases, key=lambda lease: lease.priority):
            if self.used_nbytes + nbytes <= limit.nbytes:
                return
            if lease.reclaim is not None and lease.priority < priority:
                lease.reclaim()
        if self.used_nbytes + nbytes > limit.nbytes:
            free = max(0, limit.nbytes - self.used_nbytes)
            places = decimals(nbytes, free)
            raise BudgetExceeded(
                f"{format_nbytes(nbytes, places)} are needed for {_purpose(name)}, but only "
                f"{format_nbytes(free, places)} of the {format_nbytes(limit.nbytes)} budget{_set_by(limit)} are free",
                self._advice(limit, name, self.used_nbytes + nbytes, fixed=fixed),
                table=self.table(name, nbytes),
                needed_nbytes=self.used_nbytes + nbytes,
            )

    def _advice(self, limit: Limit, name: str, wanted: int, *, fixed: int) -> str:
        """Say what would help, of what can: models have their leases named by role."""
        least = fixed + sum(lease.nbytes for lease in self.leases if lease.fixed)
        if least > limit.nbytes:
            return f"no shorter context makes it fit, {limit.raised(least)}"
        drafts = any(each.endswith(":draft") for each in (name, *(lease.name for lease in self.leases)))
        word = "" if drafts else "or "
        choices = f"{limit.raised(wanted)}, {word}shorten the context (--ctx-size)"
        return choices + (", or drop the draft model (--drafter suffix)" if drafts else "")

    def _resize(self, lease: Lease, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"lease {lease.name!r} of {nbytes} bytes")
        if nbytes > lease.nbytes:
            more = nbytes - lease.nbytes
            self._make_room(lease.name, more, priority=lease.priority, fixed=more if lease.fixed else 0)
        lease.nbytes = nbytes


def _set_by(limit: Limit) -> str:
    return "" if limit.name == ASKED else f" ({limit.name})"


def _purpose(name: str) -> str:
    """Say what a lease is for: `weights:target` is `the target's weights`."""
    kind, *owner = name.split(":")
    kind = {"kv": "keys and values", "work": "workspace"}.get(kind, kind)
    return f"the {owner[0]}'s {kind}" if owner else kind
