"""The endpoint /v1/verify: a device drafts, and this server's model verifies (`serve --verify-drafts`)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from gzip import compress
from threading import Event
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from edgedecode import BudgetExceeded, EdgeDecodeError, InputError, SamplingOptions
from edgedecode.errors import cause

from ..guards import JsonResponse
from ..models.one import Models
from ..models.places import CLOSING, Busy, Places
from ..offered import context_length
from ..requests.fields import check_fields, read_body
from ..requests.sampling import SamplingBody, read_sampling
from ..running import Service
from ..streams import EventStream, Readers
from .states import MOST_ROWS, Held

_GREEDY = SamplingOptions(temperature=0.0)
_MOST_TOKENS = 1 << 20
_LEAST_NBYTES = 512
"""Shorter replies are not compressed; longer ones become half as long."""
MOST_TOP = 64
"""Likeliest tokens of a row: those that a sampler's helper finds."""


class VerifyBody(SamplingBody, frozen=True, kw_only=True):
    """The body of /v1/verify. session: of the reply before; without it, a new one begins. tokens: those that come after
    the first `keep` ones of it. rows: how many of the last tokens to tell the following ones of, the likeliest `top`.
    write: the most tokens to generate after them; above 0, the reply is a stream of these instead of rows. The seed and
    the fields of sampling are for it.
    """

    tokens: Annotated[list[int], Meta(min_length=1, max_length=_MOST_TOKENS)]
    model: str | None = None
    session: str | None = None
    keep: Annotated[int, Meta(ge=0)] = 0
    rows: Annotated[int, Meta(ge=0, le=MOST_ROWS)] = 1
    top: Annotated[int, Meta(ge=1, le=MOST_TOP)] = 1
    write: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


_DRAWING = (*SamplingBody.__struct_fields__, "seed")
"""Fields that only what is written depends on."""


class Verified(Struct):
    """ids: for each row, the likeliest tokens. gaps: how far the logits of all but the first are below it, as exact as
    float32. logprobs: of each row's first token, in nats; those of the others are that less the gap.
    """

    session: str
    model: str
    ids: list[list[int]]
    gaps: list[list[float]]
    logprobs: list[float]


class VerifyEndpoint:
    def __init__(self, models: Models, readers: Readers) -> None:
        self._models, self._readers = models, readers

    async def verify(self, request: Request) -> Response:
        """Answer with what may follow tokens, or write on. A request that is repeated gets the same reply."""
        value, body = read_body(await request.body(), VerifyBody)
        check_fields(value, body)
        if body.rows > len(body.tokens):
            raise InputError(f"rows is {body.rows} of {len(body.tokens)} tokens: give as many or fewer")
        if not body.write and (vain := [name for name in _DRAWING if value.get(name) is not None]):
            raise InputError(f"{vain[0]} has no effect without write: leave it out")
        if body.session is None and body.keep:
            raise InputError(f"keep is {body.keep}, and a new session has no tokens: give 0")
        found, key = await self._models.find(body.model or "", exact=False), request.scope["key"]
        if found.adapter is not None or found.mode is not None:
            raise InputError("model has an adapter or a mode, and drafts are verified by the model: leave it out")
        async with AsyncExitStack() as stack:
            service = (await stack.enter_async_context(self._models.using(found))).service
            size = service.pair.tokenizer.size
            if wrong := [each for each in body.tokens if not 0 <= each < size]:
                raise InputError(f"tokens has {wrong[0]}, which is no token's id: 0 to {size - 1}")
            if body.session is not None:
                await service.states.stop(body.session, key=key)
            await stack.enter_async_context(service.places.taken())
            if body.write:
                return await self._written(body, service, found.pack, stack, key=key)
            reply = JsonResponse(await self._verified(body, service, found.pack, key=key))
        if len(reply.body) > _LEAST_NBYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            reply.body = compress(reply.body, 1)
            reply.headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(reply.body))})
        return reply

    async def _verified(self, body: VerifyBody, service: Service, name: str, *, key: int) -> Verified:
        states, held = service.states, await self._held(body, service, key=key)
        closing = partial(_check_open, service.places)
        verify = partial(states.verified, held, body.tokens, keep=body.keep, rows=body.rows, top=body.top)
        work = asyncio.ensure_future(asyncio.to_thread(verify, closing=closing))
        work.add_done_callback(lambda _: states.add(held))  # also if this is cancelled meanwhile
        rows = await asyncio.shield(work)
        return Verified(
            held.id,
            name,
            [each.ids for each in rows],
            [each.gaps for each in rows],
            [round(each.logprob, 5) for each in rows],
        )

    async def _written(
        self, body: VerifyBody, service: Service, name: str, stack: AsyncExitStack, *, key: int
    ) -> EventStream:
        """Return a line with the session, and one for each token. It ends the work if the client leaves."""
        tokenizer = service.pair.tokenizer
        sampling = read_sampling(body, _GREEDY).for_vocabulary(tokenizer.size, tokenizer.ids_containing)
        held, loop, unwanted = await self._held(body, service, key=key), asyncio.get_running_loop(), Event()
        parts: asyncio.Queue[Sequence[int]] = asyncio.Queue()

        def told(ids: Sequence[int]) -> bool:
            if ids:
                loop.call_soon_threadsafe(parts.put_nowait, ids)
            if unwanted.is_set():
                return False
            if service.states.halted:
                raise Busy(CLOSING)
            return True

        write = partial(
            service.states.write,
            held,
            body.tokens,
            keep=body.keep,
            most=body.write,
            sampling=sampling,
            seed=body.seed,
            told=told,
        )
        work = asyncio.ensure_future(asyncio.to_thread(write))
        work.add_done_callback(lambda _: parts.put_nowait(()))
        service.states.add_after(held, work, unwanted=unwanted)

        async def lines() -> AsyncIterator[bytes]:
            yield encode({"session": held.id, "model": name}) + b"\n"
            while ids := await parts.get():
                yield encode({"ids": ids}) + b"\n"
            try:
                await work
            except EdgeDecodeError as error:
                yield encode({"error": cause(error)}) + b"\n"

        async def left() -> None:
            unwanted.set()  # another request may have the state by now
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # nobody else may have asked for it

        stack.push_async_callback(left)
        needed, leaving = stack.pop_all(), AsyncExitStack()
        leaving.push_async_callback(lambda: asyncio.shield(needed.aclose()))  # the place is taken until the work ends
        return EventStream(lines(), leaving, media_type="application/x-ndjson", readers=self._readers)

    async def _held(self, body: VerifyBody, service: Service, *, key: int) -> Held:
        """Return the request's state; sessions and models that nobody needs make room for a new one. Raises Lost."""
        if body.session is not None:
            return service.states.take(body.session, key=key, keep=body.keep)
        capacity = context_length(service)
        while service.states.full and (close := service.states.oldest()) is not None:
            await asyncio.to_thread(close)
        while True:
            try:
                return await asyncio.to_thread(service.states.open, capacity=capacity, key=key)
            except BudgetExceeded:
                if not (await service.drop_session() or await service.places.find_room()):
                    raise


def _check_open(places: Places) -> None:
    """Raise Busy if the server closes."""
    if places.closing:
        raise Busy(CLOSING)
