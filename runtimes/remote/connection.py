"""Requests to one server: JSON over a connection that stays open, with a limit of time and size for each reply."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from threading import Thread
from time import monotonic, sleep
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from edgedecode.errors import EdgeDecodeError, InputError, cause
from edgedecode.typed_json import JsonValue

_MOST_NBYTES = 16 << 20
_PIECE = 1 << 16
_CONNECT_SECONDS = 5.0
_PAUSE = 0.25
"""Seconds until a server that is busy is asked again."""


Body: TypeAlias = Mapping[str, object] | None


class TargetFailed(EdgeDecodeError):
    """The server cannot be reached, or does not answer as it should. A later request may succeed."""


class Late(TargetFailed):
    """The server did not answer in time, and asking in another way would take as long again."""


class Refused(TargetFailed):
    """The server refused a request. status: of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def checked_url(url: str) -> SplitResult:
    """Return the parts of a server's address. Raises InputError for what is none, or holds a key."""
    parts, usable = urlsplit(""), False
    with suppress(ValueError):
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    if "@" in (parts.netloc or url) or parts.query or parts.fragment:
        raise InputError(
            "--target-url has more than host, port and path: a key belongs into a variable that --target-key-env names"
        )
    if not usable:
        raise InputError(f"--target-url {url[:80]!r} is no address: give one as https://host:8000")
    return parts


@dataclass(slots=True)
class Counts:
    """Of requests to a server. sent, received: bytes of bodies."""

    requests: int = 0
    sent: int = 0
    received: int = 0


class Connection:
    """A server. seconds: for a reply, from the request's first byte on.

    Redirects are not followed: text and key are for the host that the user named.
    """

    def __init__(self, url: str, *, key_variable: str = "", seconds: float = 30.0) -> None:
        self.parts, self.seconds = checked_url(url), seconds
        self.host = self.parts.netloc
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        if key_variable:
            key = os.environ.get(key_variable, "")
            if not key or not key.isascii() or not key.isprintable():
                raise InputError(f"the environment variable {key_variable} holds no key: set it, one line of ASCII")
            self._headers["Authorization"] = f"Bearer {key}"
        self.named: dict[str, str] = {}
        """The field of a body that names the model, if one is asked for."""
        self._answering = ""
        """What the server calls its model, since its first reply."""
        self._open: http.client.HTTPConnection | None = None
        self._ahead: Thread | None = None
        """Connects, before there is a request."""
        self._streams: list[Connection] = []
        """For the next streams."""
        self.counts = Counts()

    def answers(self, model: object) -> None:
        """Remember the model that answers first. Raises TargetFailed once another one does."""
        if self._answering not in ("", model):
            raise TargetFailed(f"{self.host} answers with {model!r:.40} and no longer with {self._answering!r:.40}")
        self._answering = str(model)

    def misread(self, error: Exception) -> TargetFailed:
        """Return what to raise for a reply of another shape."""
        told = f"{type(error).__name__}: {error}"
        return TargetFailed(f"{self.host} does not answer as such a server does ({told:.80})")

    def ask(self, path: str, body: Body = None) -> dict[str, JsonValue]:
        """Return the JSON object that answers a body, or, without one, is at a path. Raises TargetFailed.

        A connection that was closed meanwhile is opened again, once; the requests made with this may be repeated.
        """
        deadline = monotonic() + self.seconds
        try:
            with self._told():
                return self._object(path, self._read(self._begun(path, body, deadline), deadline))
        except BaseException:  # also an interrupt: what is left of the reply would be read as the next one
            self.close()
            raise

    def events(self, path: str, body: Body) -> Generator[dict[str, JsonValue]]:
        """Yield the events of a streamed reply, server-sent ones or an object a line. Raises TargetFailed.

        Each may take as long as a reply. It has a connection of its own, which closing the iterator ends, so that the
        server writes no more. Another one will follow: its connection is opened meanwhile.
        """
        streams, whole = self._streams, False
        own = streams.pop() if streams else self._another()
        try:
            with own._told(), own._begun(path, body, monotonic() + self.seconds) as reply:
                while line := reply.readline(_PIECE):
                    self.counts.received += len(line)
                    own._wait_until(monotonic() + self.seconds)
                    if line.startswith((b"data: {", b"{")):
                        event = self._object(path, line.removeprefix(b"data: "))
                        if event.get("error"):
                            raise TargetFailed(f"{self.host} ends its answer: {_said(event, line)}")
                        yield event
                whole = True
        finally:
            own.close()
            if not whole and streams is self._streams:  # this is not closed
                own._connect_ahead()
                streams.append(own)

    def close(self) -> None:
        """Close the connection. Idempotent; the next request opens it again."""
        gone = (self._open, *self._streams)
        self._open, self._streams, self._ahead = None, [], None
        for each in gone:
            if each is not None:
                each.close()

    def _another(self) -> Connection:
        """Return a connection to the same server."""
        found = copy(self)
        found._headers = {**self._headers, "Accept-Encoding": "identity"}
        found._open, found._streams, found._ahead = None, [], None
        return found

    def _connect_ahead(self) -> None:
        opening = self._open = self._made()

        def connect() -> None:
            with suppress(OSError):  # the request tells
                opening.connect()
            if self._open is not opening:  # closed meanwhile
                opening.close()

        self._ahead = Thread(target=connect, daemon=True)
        self._ahead.start()

    def _made(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        assert self.parts.hostname is not None
        return kind(self.parts.hostname, self.parts.port, timeout=min(_CONNECT_SECONDS, self.seconds))

    def _object(self, path: str, reply: bytes) -> dict[str, JsonValue]:
        if not isinstance(value := _json(reply), dict):
            raise TargetFailed(f"{self.host} answers {path} with what is no JSON object: {reply[:40]!r}")
        return value

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise TargetFailed, in one line, for what goes wrong on the way."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise TargetFailed(f"the certificate of {self.host} is not valid: {error.verify_message}") from None
        except TimeoutError:
            raise Late(f"{self.host} did not answer within {self.seconds:g} s") from None
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
            raise TargetFailed(f"{self.host} cannot be reached: {cause(error) or type(error).__name__}") from None

    def _begun(self, path: str, body: Body, deadline: float) -> http.client.HTTPResponse:
        """Send a request until the server is not busy; return its reply, whose headers are read. Raises Refused."""
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        self.counts.requests, self.counts.sent = self.counts.requests + 1, self.counts.sent + len(data or b"")
        while (reply := self._replied(path, data, deadline)).status != 200:
            said, place = self._read(reply, deadline), reply.headers.get("Location", "elsewhere")
            if 300 <= reply.status < 400:
                raise Refused(f"{self.host} redirects to {place[:80]}, which is not followed: give that", reply.status)
            if reply.status not in (429, 503) or monotonic() + _PAUSE > deadline:
                raise Refused(f"{self.host} refuses {path} ({reply.status}): {_said(_json(said), said)}", reply.status)
            sleep(_PAUSE)
        return reply

    def _replied(self, path: str, data: bytes | None, deadline: float) -> http.client.HTTPResponse:
        """Send a request, again if the server had closed a connection on which nothing was sent for a while."""
        kept = self._open is not None
        try:
            return self._sent(path, data, deadline)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if not kept:
                raise
            self.close()
            return self._sent(path, data, deadline)

    def _sent(self, path: str, data: bytes | None, deadline: float) -> http.client.HTTPResponse:
        if self._ahead is not None:
            self._ahead.join()
            self._ahead = None
        self._open = self._open or self._made()
        if self._open.sock is None:
            try:
                self._open.connect()
            except TimeoutError:
                limit = min(_CONNECT_SECONDS, self.seconds)
                raise Late(f"{self.host} cannot be reached within {limit:g} s") from None
        self._wait_until(deadline)
        base = self.parts.path.rstrip("/").removesuffix("/v1")  # with which OpenAI's clients are given it
        self._open.request("GET" if data is None else "POST", base + path, data, self._headers)
        return self._open.getresponse()

    def _read(self, reply: http.client.HTTPResponse, deadline: float) -> bytes:
        pieces, size = [], 0
        while piece := reply.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_NBYTES:
                raise http.client.HTTPException(f"its reply has more than {_MOST_NBYTES >> 20} MB")
            self._wait_until(deadline)
        reply.close()  # only then may the next request be sent
        if reply.will_close:
            self.close()
        self.counts.received += size
        data = b"".join(pieces)
        packed = reply.headers.get("Content-Encoding") == "gzip"
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _MOST_NBYTES) if packed else data

    def _wait_until(self, deadline: float) -> None:
        """Limit the time of the next reading. Raises TimeoutError."""
        if (left := deadline - monotonic()) <= 0:
            raise TimeoutError
        if self._open is not None and self._open.sock is not None:
            self._open.sock.settimeout(left)


def _json(reply: bytes) -> object:
    """Return the value of a reply; None: it is no JSON."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        return None


def _said(value: object, reply: bytes) -> str:
    """Return the message of an error, in the form of OpenAI's, of vLLM's or of llama-server's."""
    found = value.get("error", value.get("detail", value)) if isinstance(value, dict) else None
    found = found.get("message", found) if isinstance(found, dict) else found
    text = found if isinstance(found, str) else reply[:80].decode("utf-8", "replace")
    return " ".join(text.split())[:200]
