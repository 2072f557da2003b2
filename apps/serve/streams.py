"""Replies whose clients may leave or stop reading before they end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from edgedecode import EdgeDecodeError

from .guards import error_response

_logger = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """A reply in parts; what the first answer holds is released even if the client leaves before the first part.

    seconds: for one event. A client that does not read for so long is disconnected: its answer keeps others waiting.
    """

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack, *, media_type: str, seconds: float) -> None:
        super().__init__(events, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._stack, self._seconds = stack, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            try:
                async with asyncio.timeout(self._seconds):
                    await send(message)
            except TimeoutError:
                raise OSError("the client does not read") from None

        try:
            await super().__call__(scope, receive, sent)
        except (OSError, ClientDisconnect):
            _logger.info("a client was disconnected: it did not read for %g s", self._seconds)
        finally:
            await self._stack.aclose()


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
