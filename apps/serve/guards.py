"""Checks that run before every request: the Host header, the key, the size of the body, and time to send it."""

import asyncio
import hmac
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from msgspec.json import encode
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors.forms import ErrorDetails, ErrorType, error_kind
from .page import ASSETS

_OPEN = ("/health", "/")
"""Paths that need no key, with those below the page's `ASSETS`."""


class JsonResponse(Response):
    """A reply with what `msgspec.json` can encode."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode(content)


class _ErrorResponse(JsonResponse):
    """An error in the form of the API whose request it answers."""

    def __init__(self, status: int, error: ErrorDetails, headers: dict[str, str] | None) -> None:
        super().__init__(None, status, headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = encode(error_kind(scope["path"]).of(self.status_code, self._error))
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def error_response(
    status: int,
    message: str,
    *,
    kind: ErrorType = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> Response:
    """Return an error. param: the path of the field of the body that is wrong, if known."""
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return _ErrorResponse(status, ErrorDetails(message, kind, param, code), headers)


_MOST_HEADERS = 100
CHANGING = ("/api/pull", "/api/delete")
"""Paths of requests that change the library."""


@dataclass(frozen=True, slots=True)
class _Body:
    """What a client sent. complete: up to its end. refusal: why it is not read."""

    data: bytes = b""
    complete: bool = False
    refusal: Response | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """hosts: names that the Host header may have; empty: any. key: the bearer key; empty: none. asking: further keys,
    which may not change the library.

    origins: of web pages that may use the server; "*": any. strict_model: refuse other models' names. seconds: for a
    client to send a body, and to read an event.
    """

    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    origins: tuple[str, ...] = ()
    key: str = ""
    asking: tuple[str, ...] = ()
    strict_model: bool = False
    most_nbytes: int = 8 << 20
    seconds: float = 30.0


class Guards:
    """ASGI middleware. Checking Host keeps web pages elsewhere from reaching this server under a name of their own (DNS
    rebinding). most: requests that run and wait, of which each of several keys may have the same share.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, most: int = 1) -> None:
        self._app, self._hosts = app, frozenset(map(_name, limits.hosts))
        self._keys = [key.encode() for key in (limits.key, *limits.asking) if key]
        self._most_nbytes, self._seconds, self._origins = limits.most_nbytes, limits.seconds, frozenset(limits.origins)
        self._share = max(1, most // len(self._keys)) if len(self._keys) > 1 else None
        self._asked = Counter[int]()
        """Requests of each key that run or wait."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        scope["key"] = self._key(headers)
        refusal = self._refusal(scope["path"], headers, key=scope["key"])
        if len(scope["headers"]) > _MOST_HEADERS:
            refusal = error_response(431, f"the request has more than {_MOST_HEADERS} headers", code="headers")
        body = await self._body(receive, headers, keep=refusal is None)
        refusal = refusal or body.refusal or self._beyond_share(scope)
        if refusal is not None:
            if not body.complete:  # the rest of it would keep the connection, and a slow client an idle one
                refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
            return
        given = False

        async def again() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body.data, "more_body": False}

        self._asked[scope["key"]] += 1
        try:
            await self._app(scope, again, send)
        finally:
            self._asked[scope["key"]] -= 1

    def _beyond_share(self, scope: Scope) -> Response | None:
        """Refuse a request whose key would leave too little room for the others."""
        if self._share is None or scope["method"] != "POST" or self._asked[scope["key"]] < self._share:
            return None
        message = f"this key has {self._share} requests that run or wait, its share: try again when one has ended"
        return error_response(429, message, kind="requests", code="rate_limit_exceeded")

    def _key(self, headers: dict[bytes, bytes]) -> int:
        """Return the number of a request's key; -1: it is none of the server's, which may have none."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = key if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")  # Anthropic's clients
        same = [hmac.compare_digest(given.strip(), each) for each in self._keys]
        return same.index(True) if True in same else -1

    def _refusal(self, path: str, headers: dict[bytes, bytes], *, key: int = -1) -> Response | None:
        host = headers.get(b"host", b"").decode("latin-1").casefold()
        name = _name(host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host)
        if self._hosts and name not in self._hosts:
            return error_response(421, f"the Host header names {name[:80]!r}, which this server is not", code="host")
        origin = headers.get(b"origin", b"").decode("latin-1").casefold()
        allowed = {f"http://{host}", f"https://{host}", *self._origins}
        if b"origin" in headers and not allowed & {"*", origin}:
            message = "requests of other web pages are refused: --allow-origin names those that are allowed"
            return error_response(403, message, code="origin")
        if self._keys and key < 0 and path not in _OPEN and not path.startswith(f"{ASSETS}/"):
            message = "the API key is missing or wrong: give it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
            return error_response(401, message, code="invalid_api_key")
        if path in CHANGING and (key > 0 or (key < 0 and not {f"http://{host}", f"https://{host}", ""} & {origin})):
            who = "this key may ask, and change nothing" if key > 0 else "pages of other origins change nothing"
            return error_response(403, f"{who}: the library is changed with the server's first key", code="forbidden")
        return None

    async def _body(self, receive: Receive, headers: dict[bytes, bytes], *, keep: bool) -> _Body:
        """Read a body, and keep it if asked to. A little more than the limit is read, so that the client reads why."""
        too_large = error_response(413, f"the body is larger than {self._most_nbytes} bytes", code="too_large")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > 2 * self._most_nbytes:
            return _Body(refusal=too_large)
        parts: list[bytes] = []
        nbytes = 0
        try:
            async with asyncio.timeout(self._seconds):
                while nbytes <= 2 * self._most_nbytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _Body(refusal=error_response(400, "the client went away"))
                    part = message.get("body", b"")
                    nbytes += len(part)
                    if keep and nbytes <= self._most_nbytes:
                        parts.append(part)
                    if not message.get("more_body"):
                        refusal = None if nbytes <= self._most_nbytes else too_large
                        return _Body(b"".join(parts), complete=True, refusal=refusal)
        except TimeoutError:
            late = f"the body did not arrive within {self._seconds:g} s"
            return _Body(refusal=error_response(408, late, code="timeout"))
        return _Body(refusal=too_large)


def _name(host: str) -> str:
    """Return a host as it is compared: an IPv6 address without brackets in its usual form, a name in lower case."""
    try:
        return str(ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host))
    except ValueError:
        return host.casefold()
