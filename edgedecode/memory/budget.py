"""The memory budget: every allocation holds a lease, and a lease that does not fit is refused before allocation."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import NamedTuple
from weakref import ref

from edgedecode.errors import BudgetExceeded
from edgedecode.fair_lock import FairLock

from .limit import ASKED, Limit
from .sizes import decimals, format_nbytes


class Holder(NamedTuple):
    """A part of the plan, named after its later lease."""

    name: str
    nbytes: int


PROCESS = "process (interpreter, engine, tokenizer)"
"""Name of the lease for the memory of the process before a model is open."""
TOKENIZER = "tokenizer of a pack"
"""Name of the lease of a pack's tokenizer where several packs share the process's."""
VARIATION, VARIATION_NBYTES = "variation between processes", 2 * 2**20
"""Growth of a process before a model is open, in addition to its leases."""
_LEFT_NBYTES = 14 * 2**20
"""What closed packs leave in a process: 10 to 13 MB were measured, after one and after 72."""
_WORKING = "working memory"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "adapter", "graph"),
    "KV cache": ("kv",),
    _WORKING: (),
    "program and engine": (PROCESS, TOKENIZER, VARIATION, "engine code", "llama.cpp code", "driver"),
}
"""What users are shown of a plan, and the holders of each part by their names before a colon."""


def in_parts(holders: Iterable[Holder]) -> dict[str, int]:
    """Return the bytes of each part of a plan. What belongs to no other part is working memory."""
    part_of = {kind: part for part, kinds in _PARTS.items() for kind in kinds}
    sums = dict.fromkeys(_PARTS, 0)
    for name, nbytes in holders:
        sums[part_of.get(name.partition(":")[0], _WORKING)] += nbytes
    return sums


def total_nbytes(holders: Iterable[Holder]) -> int:
    """Return the sum of the holders' bytes."""
    return sum(holder.nbytes for holder in holders)


_DRAFTS = (":draft", ":trim")
"""Ends of the names of draft models' leases."""
_OWNERS = {"trim": "trimmed draft"}
"""Models whose names in leases are no words for users."""


class Lease:
    """A named share of a budget. As a context manager it releases itself; `release` is idempotent.

    `release` takes no lock, because finalizers call it in any thread at any time.
    """

    __slots__ = ("_budget", "fixed", "name", "nbytes", "priority", "reclaim")

    def __init__(self, budget: "Budget", name: str, *, nbytes: int, priority: int, fixed: bool) -> None:
        self._budget: Budget | None = budget
        self.name = name
        self.nbytes = nbytes
        self.fixed = fixed
        self.priority = priority
        self.reclaim: Callable[[], None] | None = None
        """Callback of the holder that releases or shrinks the lease for a higher priority; None: it cannot shrink."""

    def resize(self, nbytes: int) -> None:
        """Grow or shrink to `nbytes`. Raises BudgetExceeded if the growth does not fit; the lease then stays as is."""
        budget = self._budget
        if budget is None:
            raise ValueError(f"lease {self.name!r} was released")
        budget._lock.run(lambda: budget._resize(self, nbytes))

    @property
    def held(self) -> bool:
        return self._budget is not None

    def release(self) -> None:
        """Return the bytes to the budget."""
        self._budget = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Budget:
    """A hard limit over the sum of all leases; None: no limit. Thread-safe.

    shared: the budget that this is a part of; the limit is then what its other parts leave.
    """

    def __init__(self, limit: int | Limit | None = None, *, shared: "SharedBudget | None" = None) -> None:
        self._limit = Limit(limit) if isinstance(limit, int) else limit
        self.shared = shared
        self._lock = FairLock() if shared is None else shared.lock
        self._leases: list[Lease] = []
        """Written under the lock; includes leases released since."""

    @property
    def limit(self) -> Limit | None:
        return self._limit if self.shared is None else self.shared.left_to(self)

    @limit.setter
    def limit(self, limit: Limit | None) -> None:
        """Change the limit of a budget of its own."""
        self._limit = limit

    @property
    def limit_nbytes(self) -> int | None:
        return None if self.limit is None else self.limit.nbytes

    @property
    def used_nbytes(self) -> int:
        """Sum of all leases."""
        return sum(lease.nbytes for lease in self._leases if lease.held)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The current leases, oldest first."""
        return tuple(lease for lease in self._leases if lease.held)

    def reserve(self, name: str, nbytes: int, *, priority: int = 0, fixed: bool = False, following: int = 0) -> Lease:
        """Lease `nbytes` before allocating them.

        If they do not fit, calls `reclaim` of leases with a lower `priority`, lowest first. Raises BudgetExceeded with
        the table of leases if that is not enough.

        fixed: no choice of context or drafter makes it smaller. following: lower bound of fixed bytes that will be
        requested next; a refusal includes them in the budget that it recommends.
        """
        if nbytes < 0:
            raise ValueError(f"lease {name!r} of {nbytes} bytes")
        lease = Lease(self, name, nbytes=nbytes, priority=priority, fixed=fixed)
        self._lock.run(lambda: self._add(lease, following=following))
        return lease

    def reserve_for_process(self, holder: Holder) -> AbstractContextManager[object]:
        """Lease what stays until the process ends, once, for all parts of a shared budget."""
        home = self if self.shared is None else self.shared.own
        if any(lease.name == holder.name for lease in home.leases):
            return nullcontext()
        return home.reserve(*holder, fixed=True)

    def give_back(self) -> bool:
        """Call every `reclaim` of a lease that is not empty. Return whether there was one."""
        reclaimable = [reclaim for lease in self.leases if (reclaim := lease.reclaim) is not None and lease.nbytes]
        for reclaim in reclaimable:
            reclaim()
        return bool(reclaimable)

    def table(self, request: str = "", nbytes: int = 0) -> str:
        """Render the leases in parts, one per line, then the request (if any), the sum and the limit."""
        parts = in_parts(Holder(lease.name, lease.nbytes) for lease in self.leases)
        rows = [(part, held) for part, held in parts.items() if held]
        limit = self.limit
        beside = 0 if limit is None else limit.beside
        if beside:
            rows.append(("others in this process", beside))
        if request:
            rows.append((f"{_purpose(request)} (requested)", nbytes))
        rows.append(("sum", beside + self.used_nbytes + nbytes))
        if limit is not None:
            rows.append((f"budget{_set_by(limit)}", limit.whole))
        width = max(len(name) for name, _ in rows)
        places = decimals(rows[-2][1], rows[-1][1]) if limit is not None else 1
        return "\n".join(f"  {name:<{width}}  {format_nbytes(value, places):>10}" for name, value in rows)

    def _add(self, lease: Lease, *, following: int) -> None:
        fixed = lease.nbytes + following if lease.fixed else 0
        self._make_room(lease.name, lease.nbytes, priority=lease.priority, fixed=fixed)
        self._leases = [*self.leases, lease]

    def _make_room(self, name: str, nbytes: int, *, priority: int, fixed: int = 0) -> None:
        limit = self.limit
        if limit is None:
            return
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
                f"{format_nbytes(free, places)} of the {format_nbytes(limit.whole)} budget{_set_by(limit)} are free",
                self._advice(limit, name, self.used_nbytes + nbytes, fixed=fixed),
                table=self.table(name, nbytes),
                needed_nbytes=self.used_nbytes + nbytes,
            )

    def _advice(self, limit: Limit, name: str, wanted: int, *, fixed: int) -> str:
        """Return advice on how to make the request fit. Leases of models are named by role."""
        least = fixed + sum(lease.nbytes for lease in self.leases if lease.fixed)
        if least > limit.nbytes:
            return f"no shorter context makes it fit, {limit.raised(least)}"
        drafts = any(each.endswith(_DRAFTS) for each in (name, *(lease.name for lease in self.leases)))
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


class SharedBudget:
    """A limit whose parts are budgets; each may hold what the others leave. Thread-safe.

    What the process holds without a pack is leased once, and measured whenever no pack holds anything.
    """

    def __init__(self, limit: Limit | None) -> None:
        self.whole = limit
        self.lock = FairLock()
        self._parts: tuple[ref[Budget], ...] = ()
        self.own = self.part()
        """Of what belongs to no pack."""
        self._program = self.own.reserve(PROCESS, 0, fixed=True)
        self.own.reserve(VARIATION, _LEFT_NBYTES, fixed=True)
        self._engines: set[str] = set()

    def part(self) -> Budget:
        """Return a budget of its own within the limit. It counts until it is dropped."""
        found = Budget(shared=self)
        self.lock.run(lambda: self._add(ref(found)))
        return found

    @property
    def parts(self) -> list[Budget]:
        return [found for part in self._parts if (found := part()) is not None]

    @property
    def used_nbytes(self) -> int:
        """Sum of all leases of all parts."""
        return sum(part.used_nbytes for part in self.parts)

    @property
    def program_nbytes(self) -> int:
        """What the process holds without a pack, when that was last measured."""
        return self._program.nbytes

    def count_program(self, nbytes: int) -> None:
        """Lease what the process was measured to hold without a pack; no effect while one is open, which is in it.

        Raises BudgetExceeded.
        """
        if not self.is_shared(self.own):
            measured = self.own.used_nbytes - self._program.nbytes - _LEFT_NBYTES  # what engines hold
            self._program.resize(max(0, nbytes - measured))

    def count_import(self, engine: str, nbytes: int) -> None:
        """Lease what the import of an engine took, the first time. Raises BudgetExceeded."""
        if engine not in self._engines:
            self._program.resize(self._program.nbytes + nbytes)
            self._engines.add(engine)

    def is_shared(self, part: Budget) -> bool:
        """Return whether a pack holds something in another part than this one."""
        return any(other.used_nbytes for other in self.parts if other is not part and other is not self.own)

    def left_to(self, part: Budget) -> Limit | None:
        """Return the limit that other parts leave to one of them."""
        if self.whole is None:
            return None
        beside = sum(other.used_nbytes for other in self.parts if other is not part)
        return Limit(max(1, self.whole.nbytes - beside), self.whole.name, beside)

    def _add(self, part: ref[Budget]) -> None:
        self._parts = (*(each for each in self._parts if each() is not None), part)


def _set_by(limit: Limit) -> str:
    return "" if limit.name == ASKED else f" ({limit.name})"


def _purpose(name: str) -> str:
    """Describe a lease: `weights:target` becomes `the target's weights`, `adapter:formal` `the adapter formal`."""
    kind, *owner = name.split(":")
    if kind == "adapter":
        return f"the adapter {' '.join(owner)}"
    kind = {"kv": "keys and values", "work": "workspace"}.get(kind, kind)
    return f"the {_OWNERS.get(owner[0], owner[0])}'s {kind}" if owner else kind
