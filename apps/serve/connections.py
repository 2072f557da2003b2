"""HTTP connections: how many there may be, how long a request's head may take, and how they end. uvicorn does the rest.

uvicorn alone waits forever for the first request of a connection, so that idle connections would use up the process's
files.
"""

import asyncio
import json
import socket
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .models.one import Models

_MOST_CONNECTIONS = 512
"""Requests that run and wait are fewer. Systems allow a process 1,024 files or more."""
_LAST_SECONDS = 5.0
"""For clients to read the end of their replies once all answers have ended."""


def server_config(app: ASGIApp, *, seconds: float, log_level: str = "warning") -> uvicorn.Config:
    """Return uvicorn's configuration for an application. seconds: for a client to send the head of a request."""

    class Connection(_Connection):
        head_seconds = seconds

    return uvicorn.Config(app, http=Connection, ws="none", log_level=log_level, timeout_graceful_shutdown=30)


class ClosingServer(uvicorn.Server):
    """Lets answers end before it closes their connections. A second signal stops them at once.

    signal: the one that ended the server. uvicorn would raise it again, which ends a process before it has saved what
    it learnt.
    """

    grace_seconds = 20.0
    """For answers to end by themselves."""

    def __init__(self, config: uvicorn.Config, models: Models) -> None:
        super().__init__(config)
        self.signal: int | None = None
        self._models = models

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signal = sig
        self.force_exit, self.should_exit = self.should_exit, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._models.close(grace=self.grace_seconds, hurry=lambda: self.force_exit)
        self.force_exit = False  # the replies still end, and the application
        late = asyncio.get_running_loop().call_later(_LAST_SECONDS, self._abort)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    def _abort(self) -> None:
        """Close all connections, as if the clients had left: uvicorn's way, to cancel requests, prints tracebacks."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Connection(H11Protocol):
    head_seconds: float
    _late: asyncio.TimerHandle | None = None
    """Closes the connection while the head of a request is awaited."""
    _unread: asyncio.TimerHandle | None = None
    """Closes it while the client has something to read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Else a reply's body waits 40 ms for the acknowledgement of its head: asyncio turns this off only for sockets
        # that were made with the protocol's number.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called for whatever is not read
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with an error in OpenAI's form, and close the connection."""
        error = {"message": msg, "type": "invalid_request_error", "param": None, "code": "http"}
        data = json.dumps({"error": error}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data))), ("Connection", "close")]
        try:
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=data), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer has begun: all that is left is to end it
            pass
        self.transport.close()

    def _await_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self.transport.close)

    def _await_reading(self, unread: int) -> None:
        """Drop the connection, which may be closing, unless the client reads some of what is there."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            self._await_reading(left) if left < unread else self.transport.abort()

        self._unread = self.loop.call_later(self.head_seconds, look)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
