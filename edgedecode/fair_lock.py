"""A first-in-first-out lock, and callbacks deferred until the calling thread holds no such lock.

A finalizer or a signal handler interrupts its thread at any point. An object that it closes may be in use a few frames
below, and waiting for another thread may deadlock, so closing is deferred until the thread has left its locks.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, local
from typing import TYPE_CHECKING, TypeVar

from edgedecode.errors import CapabilityError

if TYPE_CHECKING:
    from _thread import LockType

T = TypeVar("T")


class _Here(local):
    """The locks that the calling thread holds or waits for, and the calls deferred until it has left them all."""

    def __init__(self) -> None:
        self.tickets: dict[FairLock, LockType] = {}
        self.held: set[FairLock] = set()
        """The locks of `tickets` that this thread holds."""
        self.later: deque[Callable[[], None]] = deque()
        self.catching_up = False


_here = _Here()


class FairLock:
    """Held by one thread at a time; waiting threads get it in the order of arrival.

    The first ticket in the queue has the lock. Releasing a ticket wakes its thread, which is harmless if the ticket is
    or was the first. So every step may be repeated, and an interrupt between two steps loses nothing.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[LockType] = deque()

    @property
    def held(self) -> bool:
        """Whether this thread holds it; waiting does not count."""
        return self in _here.held

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, called with the lock held. Re-entrant.

        Raises CapabilityError in a signal handler or a finalizer of a thread that waits for the lock: the interrupted
        frames would get it first, and cannot run.
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
        except BaseException:  # an interrupt may have come before `_leave`
            self._leave(here)
            raise

    def pass_on(self) -> None:
        """Let every waiting thread go first. After an interrupt the lock is no longer held."""
        if len(self._queue) > 1:
            before = _here.tickets[self]
            try:
                self._wait(_here, before)
            except BaseException:
                self._drop(before)
                raise

    def _wait(self, here: _Here, before: "LockType | None" = None) -> None:
        """Join the queue, drop the ticket `before`, and wait for the lock."""
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

    def _drop(self, ticket: "LockType") -> None:
        """Remove a ticket from the queue, and wake the thread of the first one."""
        queue = self._queue
        if ticket in queue:
            queue.remove(ticket)
        if queue:
            with suppress(IndexError, RuntimeError):  # the queue is empty now, or the thread is awake
                queue[0].release()


def _catch_up(here: _Here) -> None:
    """Run the deferred calls. Errors are logged, since they are not those of the call that left the lock."""
    here.catching_up = True
    try:
        while here.later and not here.tickets:
            _run_logged(here.later.popleft())
    finally:
        here.catching_up = False


def _run_logged(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        logging.getLogger("edgedecode").exception("a close deferred until the end of a round failed")


def when_free(call: Callable[[], None]) -> None:
    """Call now, or, if this thread holds or waits for locks, when it has left the last one.

    Errors of a deferred call are logged with their traceback, not raised.
    """
    if _here.tickets:
        _here.later.append(call)
    else:
        call()
