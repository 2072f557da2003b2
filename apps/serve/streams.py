"""Replies whose clients may leave or stop reading before they end."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from edgedecode import EdgeDecodeError

from .guards import error_response

_logger = logging.getLogger(__name__)
_PART_NBYTES = 100
"""Memory of a part besides its bytes."""


class Readers:
    """The clients of replies in parts. seconds: to read a part. most_nbytes: that all of them together have not read;
    beyond it, the client that is behind the most is disconnected.
    """

    def __init__(self, *, seconds: float, most_nbytes: int = 8 << 20) -> None:
        self.seconds, self._most_nbytes = seconds, most_nbytes
        self.unread = Counter[EventStream]()
        """Bytes of each."""

    def count(self, stream: "EventStream", nbytes: int) -> None:
        """Count what a client has not read, or has read now."""
        self.unread[stream] += nbytes
        if nbytes > 0 and self.unread.total() > self._most_nbytes:
            self.unread.most_common(1)[0][0].cut()


class EventStream(StreamingResponse):
    """A reply in parts. They are made whether or not the client reads, so that an answer keeps nobody waiting for it.

    stack: what making them needs. It is released once they are made, or the client leaves.
    """

    def __init__(
        self, events: AsyncIterator[bytes], stack: AsyncExitStack, *, media_type: str, readers: Readers
    ) -> None:
        super().__init__(self._read(), media_type=media_type, headers={"Cache-Control": "no-store"})
        self.events, self.stack, self._readers = events, stack, readers
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        """Those that were not sent; an empty one is the last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            try:
                async with asyncio.timeout(self._readers.seconds):
                    await send(message)
            except TimeoutError:
                raise OSError("the client does not read") from None

        self._making = asyncio.create_task(self._make())
        try:
            await super().__call__(scope, receive, sent)
        except (OSError, ClientDisconnect):
            _logger.info("a client was disconnected: it did not read for %g s, or too little", self._readers.seconds)
        finally:
            self._making.cancel()
            await asyncio.wait({self._making})
            await self.stack.aclose()
            del self._readers.unread[self]

    def cut(self) -> None:
        """Make no more parts, and forget those that were not sent. The reply has no end then."""
        self._making.cancel()
        self._parts = asyncio.Queue()
        self._readers.unread[self] = 0
        self._parts.put_nowait(b"")

    async def _make(self) -> None:
        try:
            async with self.stack:
                async for part in self.events:
                    self._parts.put_nowait(part)
                    await asyncio.sleep(0)  # a client that reads has it now, however large it is
                    self._readers.count(self, len(part) + _PART_NBYTES)
        finally:
            self._parts.put_nowait(b"")

    async def _read(self) -> AsyncIterator[bytes]:
        while part := await self._parts.get():
            self._readers.count(self, -len(part) - _PART_NBYTES)
            yield part
        await asyncio.wait({self._making})
        if self._making.cancelled():
            raise OSError("the client reads too little")
        self._making.result()


async def unless_gone(request: Request, work: Awaitable[Response]) -> Response:
    """Await a reply; if the client goes away first, cancel it, which stops its answers."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return error_response(499, "the client went away")
    except asyncio.CancelledError:  # uvicorn gives up waiting; the work would go on, since `wait` does not cancel it
        task.cancel()
        await asyncio.wait({task})
        raise
    except BaseExceptionGroup as group:
        refusals = [error for error in group.exceptions if isinstance(error, EdgeDecodeError)]
        if refusals:
            raise refusals[0] from None
        raise
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while True:
        if (await request.receive())["type"] == "http.disconnect":
            return
