"""Locks that are given in the order they were asked for, and work that waits until its thread is in none of them.

A finalizer or a signal handler may run in the middle of whatever its thread does. What it closes then may be in use a
few frames below, and waiting for another thread may be for ever: such work is put off until the thread is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _thread import LockType

__all__ = ["FairLock", "when_free"]

T = TypeVar("T")


class _Here(local):
    """What the calling thread holds or waits for, and what it does when it has left all of it."""

    def __init__(self) -> None:
        self.tickets: dict[FairLock, LockType] = {}
        self.later: deque[Callable[[], None]] = deque()


_here = _Here()


class FairLock:
    """Held by one thread at a time; those that wait get it in the order they came.

    The first ticket in the queue has the lock. To wake a thread is to release its ticket, which harms nobody where the
    ticket is the first or has been it: so every step may be done twice, and an interrupt between two of them loses
    nothing.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[LockType] = deque()

    @property
    def held(self) -> bool:
        """Whether this thread holds it, or waits for it."""
        return self in _here.tickets

    def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, called with the lock held; this thread may hold it already."""
        here = _here
        if self in here.tickets:
            return call()
        try:
            try:
                self._wait(here)
                return call()
            finally:
                self._leave(here)
        except BaseException:  # an interrupt may have come before it was left
            self._leave(here)
            raise

    def pass_on(self) -> None:
        """Let every thread that waits come first. Where this is interrupted the lock is not held any more."""
        if len(self._queue) > 1:
            before = _here.tickets[self]
            try:
                self._wait(_here, before)
            except BaseException:
                self._drop(before)
                raise

    def _wait(self, here: _Here, before: LockType | None = None) -> None:
        """Queue up, give the ticket `before` back, and wait for the lock."""
        queue, ticket = self._queue, Lock()
        ticket.acquire()
        try:
            queue.append(ticket)
            here.tickets[self] = ticket
            if before is not None:
                self._drop(before)
            if queue[0] is not ticket:
                ticket.acquire()
        except BaseException:
            self._drop(ticket)
            here.tickets.pop(self, None)
            raise

    def _leave(self, here: _Here) -> None:
        tickets = here.tickets
        if self in tickets:
            self._drop(tickets[self])
            tickets.pop(self, None)
        if here.later and not tickets:
            _catch_up(here)

    def _drop(self, ticket: LockType) -> None:
        """Take a ticket out of the queue, and wake whose turn it is."""
        queue = self._queue
        if ticket in queue:
            queue.remove(ticket)
        if queue:
            with suppress(IndexError, RuntimeError):  # nobody waits any more, or it is awake
                queue[0].release()


def _catch_up(here: _Here) -> None:
    while here.later and not here.tickets:
        here.later.popleft()()


def when_free(call: Callable[[], None]) -> None:
    """Call now; where this thread is in a lock or waits for one, when it has left the last."""
    if _here.tickets:
        _here.later.append(call)
    else:
        call()
