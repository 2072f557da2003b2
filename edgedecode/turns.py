"""A first-in-first-out lock, and callbacks deferred until the calling thread holds no such lock.

A finalizer or a signal handler may run in the middle of whatever its thread does. What it closes then may be in use a
few frames below, and waiting for another thread may be for ever: such work is deferred until the thread is out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, local
from typing import TYPE_CHECKING, TypeVar

from edgedecode.errors import CapabilityError

if TYPE_CHECKING:
    from _thread import LockType

__all__ = ["FairLock", "when_free"]

T = TypeVar("T")


class _Here(local):
    """What the calling thread holds or waits for, and what it does when it has left all of it."""

    def __init__(self) -> None:
        self.tickets: dict[FairLock, LockType] = {}
        self.held: set[FairLock] = set()
        """Those of `tickets` whose turn has come."""
        self.later: deque[Callable[[], None]] = deque()
        self.catching_up = False


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
        """Whether this thread holds it; one that waits for it does not."""
        return self in _here.held

    def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, called with the lock held; this thread may hold it already.

        Raises CapabilityError in a signal handler or a finalizer of a thread that waits for it: another thread has it,
        and gives it to the frames below first.
        """
        here = _here
        if self in here.held:
            return call()
        if self in here.tickets:
            raise CapabilityError(
                "this was called from a signal handler or a finalizer while its thread waits for the models: "
                "do it afterwards, or in another thread"
            )
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
            here.held.discard(self)
            if before is not None:
                self._drop(before)
            if queue[0] is not ticket:
                ticket.acquire()
            here.held.add(self)
        except BaseException:
            here.held.discard(self)
            self._drop(ticket)
            here.tickets.pop(self, None)
            raise

    def _leave(self, here: _Here) -> None:
        tickets = here.tickets
        if self in tickets:
            here.held.discard(self)
            self._drop(tickets[self])
            tickets.pop(self, None)
        if here.later and not tickets and not here.catching_up:
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
    """Do what was deferred. What fails is logged: whoever left the lock has asked for something else."""
    here.catching_up = True
    try:
        while here.later and not here.tickets:
            _done(here.later.popleft())
    finally:
        here.catching_up = False


def _done(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        logging.getLogger("edgedecode").exception("what was closed in the middle of a round failed to close")


def when_free(call: Callable[[], None]) -> None:
    """Call now; where this thread is in a lock or waits for one, when it has left the last.

    What fails then is logged with its traceback, not raised.
    """
    if _here.tickets:
        _here.later.append(call)
    else:
        call()
