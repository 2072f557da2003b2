"""/api/pull and /api/delete: clients of Ollama download models into the library, and remove them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from edgedecode import EdgeDecodeError, InputError, ManifestError
from edgedecode.errors import cause
from edgedecode.library.named_models import pull
from edgedecode.library.names import is_path, without_hub
from edgedecode.library.removal import pulled_model, removable, remove
from edgedecode.user_notices import ask_before_downloads, show_work

from ..guards import JsonResponse
from ..models.one import Models, UnknownModel
from ..models.places import Busy
from ..models.progress import Progress
from ..requests.fields import read_object, typed_body
from ..streams import EventStream, Readers
from .models import Name, shown_name

_MOST_PULLS = 4
"""At a time, each of another model."""
_LAST_SECONDS = 5.0
"""For pulls to end once the server closes."""
_TICK = 0.2
"""Seconds between two looks at a download's progress."""


class PullBody(Struct, frozen=True):
    """The body of /api/pull. Other fields have no effect."""

    model: Annotated[Name, Meta(max_length=300)]
    stream: bool | None = None


@dataclass(slots=True, eq=False)
class _Pull:
    """A download. done: set once it has ended."""

    done: asyncio.Future[None]
    progress: Progress

    @property
    def event(self) -> dict[str, object]:
        now = self.progress
        if not now.total:
            return {"status": "pulling manifest"}
        digest = sha256(now.what.encode()).hexdigest()  # by which clients tell one download from another
        completed = min(now.total, int(now.completed))
        return {"status": now.what, "digest": f"sha256:{digest}", "total": now.total, "completed": completed}


class LibraryEndpoints:
    """Two pulls of one model are one download, which goes on if its clients leave."""

    def __init__(self, models: Models, readers: Readers) -> None:
        self._models, self._readers = models, readers
        self._pulls: dict[str, _Pull] = {}

    async def pull(self, request: Request) -> Response:
        data = await request.body()
        value = read_object(data)
        body = typed_body({"model": value.get("name"), **value}, PullBody)
        name = without_hub(body.model)
        if is_path(name) or name.startswith("/") or "\0" in name:
            raise InputError(f"{name[:80]!r} is a path: give a hub id (owner/name) or a package's name")
        found = self._pull(name) if self._models.serves_library else await self._served(name)
        if body.stream is not False:
            return EventStream(
                self._events(found), AsyncExitStack(), media_type="application/x-ndjson", readers=self._readers
            )
        await asyncio.shield(found.done)
        return JsonResponse({"status": "success"})

    async def delete(self, request: Request) -> Response:
        name = shown_name(await request.body())
        found = await self._models.find(name, exact=True)
        if not self._models.serves_library or found.adapter or found.mode:
            raise InputError(f"{name[:80]!r} is not removed: only pulled models of a server of the library are")
        await asyncio.to_thread(pulled_model, found.pack)  # what is not removed stays in memory
        await self._models.drop(found.pack)
        await asyncio.to_thread(lambda: remove(removable(found.pack)))
        self._models.changed()
        return Response()

    async def ended(self) -> None:
        """Wait until the pulls have ended, with their processes: the server closes."""
        if self._pulls:
            await asyncio.wait([each.done for each in self._pulls.values()], timeout=_LAST_SECONDS)

    async def _served(self, name: str) -> _Pull:
        """Return the pull of a model that is here. Raises InputError for others: this server would not serve them."""
        try:
            await self._models.find(name, exact=True)
        except UnknownModel as error:
            why = "start `edgedecode serve` without a name to pull others"
            raise InputError(f"{error}: {why}") from None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return _Pull(done, Progress(self._models.places))

    def _pull(self, name: str) -> _Pull:
        if (running := self._pulls.get(name)) is not None:
            return running
        if self._models.places.closing or len(self._pulls) >= _MOST_PULLS:
            raise Busy(f"{len(self._pulls)} models are being pulled: try again later")
        loop = asyncio.get_running_loop()
        found = self._pulls[name] = _Pull(loop.create_future(), Progress(self._models.places))
        found.done.add_done_callback(lambda done: self._ended(name, done))

        def work() -> None:
            show_work(found.progress.bar)
            ask_before_downloads(None)  # this is the request
            error: Exception | None = None
            try:
                pull(name)
            except EdgeDecodeError as refusal:
                error = refusal
            except Exception as failure:  # of the hub's client, the disk, or pip
                error = ManifestError(f"{name} could not be pulled: {cause(failure)}")
            loop.call_soon_threadsafe(_end, found.done, error)

        # A daemon: a server that closes waits a moment for it, and the next pull goes on where it stopped.
        threading.Thread(target=copy_context().run, args=(work,), name="pull", daemon=True).start()
        return found

    def _ended(self, name: str, done: asyncio.Future[None]) -> None:
        del self._pulls[name]
        if not done.cancelled():
            done.exception()  # those that wait for it have it
        self._models.changed()

    async def _events(self, found: _Pull) -> AsyncIterator[bytes]:
        last: dict[str, object] = {}
        while True:
            if (event := found.event) != last:
                last = event
                yield encode(event) + b"\n"
            if (await asyncio.wait({found.done}, timeout=_TICK))[0]:
                break
        error = found.done.exception()
        if error is None and found.progress.total:
            yield encode(found.event | {"completed": found.progress.total}) + b"\n"
        yield encode({"status": "success"} if error is None else {"error": cause(error)}) + b"\n"


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if not done.done():
        done.set_result(None) if error is None else done.set_exception(error)
