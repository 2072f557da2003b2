"""The places of answers that run at a time, over all models of a server, and the queue for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic

from edgedecode import EdgeDecodeError

_MOMENT = 0.5
"""Seconds after which a request looks for room again."""
_TICK = 0.05
CLOSING = "the server is closing"


class Busy(EdgeDecodeError):
    """The queue is full, or a request waited too long: HTTP 503."""


async def _no_room() -> bool:
    return False


class Places:
    """parallel: most answers at a time. waiting: most requests in the queue. patience: seconds that one waits."""

    def __init__(self, *, parallel: int, waiting: int, patience: float) -> None:
        self.parallel, self.waiting, self.patience = parallel, waiting, patience
        self._slots = asyncio.Semaphore(parallel)
        self._freed = asyncio.Condition()
        self.queued = 0
        self.running = 0
        """Answers that run."""
        self.opening = 0
        """Sessions that are being opened now, or closed to make room."""
        self.ends = 0
        """How often memory has become free: an answer has ended, a session was closed, or a model has left."""
        self.closing = False
        self.find_room: Callable[[], Awaitable[bool]] = _no_room
        """Release what no answer of another model needs. Return whether anything was, or is being, released."""

    async def take(self) -> None:
        """Wait for a place among the answers that run. Raises Busy."""
        waits = self._slots.locked()
        if waits and self.queued >= self.waiting:
            raise Busy("too many requests are waiting: try again later")
        self.queued += waits
        try:
            async with asyncio.timeout(self.patience):
                await self._slots.acquire()
        except TimeoutError:
            raise Busy(f"no answer could begin within {self.patience:g} s: try again later") from None
        finally:
            self.queued -= waits
        if self.closing:
            self._slots.release()
            raise Busy(CLOSING)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Run in a place of an answer. Raises Busy."""
        await self.take()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.leave()
            await self.announce()

    def leave(self) -> None:
        """Free a place."""
        self._slots.release()

    def close(self) -> None:
        """Refuse the requests that wait for a place, and new ones."""
        self.closing = True
        for _ in range(self.queued):  # those that wait for a place find the server closing
            self._slots.release()

    async def announce(self) -> None:
        """Wake those that wait for room: an answer has ended, a session was closed, or a model has left."""
        self.ends += 1
        async with self._freed:
            self._freed.notify_all()

    async def wait_for_room(self) -> None:
        """Wait until an answer ends, or a moment: what was being opened may have failed."""
        self.queued += 1
        try:
            async with self._freed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), _MOMENT)
        finally:
            self.queued -= 1

    async def until_idle(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Wait until no answer runs or begins, at most `seconds`, and no longer than until `hurry` returns True."""
        deadline = monotonic() + seconds
        while (self.running or self.opening) and monotonic() < deadline and not hurry():
            await asyncio.sleep(_TICK)
