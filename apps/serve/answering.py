"""Answers requests in the form of their API, whole or as the answers are written."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from math import inf
from time import monotonic
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from edgedecode import BudgetExceeded, EdgeDecodeError, FinishReason, SamplingOptions
from edgedecode.decoding.stats import Stats
from edgedecode.errors import cause

from .errors.statuses import AnswerFailed
from .guards import JsonResponse
from .logprobs import Entries, Entry
from .metrics import Metrics
from .models.one import Models, UnknownModel
from .models.places import Busy
from .offered import sampling_of, within_context
from .prompts import continued, filled_in
from .reasoning import as_able
from .replies import Answered, Event, Reply, Written, calls_of, text_of
from .requests.asked import Asked, ModelName
from .requests.fields import named_in
from .requests.tools import Call
from .rounds import Piece
from .running import Running, Service
from .streams import EventStream, Readers, unless_gone

Read: TypeAlias = Callable[[bytes, SamplingOptions], Asked]
Form: TypeAlias = Callable[[Asked, str], Reply]
_NOTE = "Edgedecode-Note"
"""A header of replies: what of the request was not followed."""
_NOT_IN_HEADERS = re.compile(r"[^ -~]")
_LONGEST_NOTE = 2000
"""Characters that clients and proxies take."""
_QUIET_SECONDS = 1.0
"""After which a client is told that its model is being loaded, again and again."""


class Answering:
    def __init__(self, models: Models, metrics: Metrics, readers: Readers) -> None:
        self._models, self._metrics, self._readers = models, metrics, readers

    async def answered(self, request: Request, *, read: Read, form: Form, exact: bool) -> Response:
        """Answer a request that `read` reads, in the form of its endpoint. exact: as in `Models.find`."""
        data = await request.body()
        return await unless_gone(
            request, self._answer(data, read=read, form=form, exact=exact, key=request.scope["key"])
        )

    @asynccontextmanager
    async def asking(self, data: bytes, read: Read, *, exact: bool = False) -> AsyncIterator[tuple[Asked, Service]]:
        """Yield what a body asks, of a model that stays in memory meanwhile. Raises InputError, UnknownModel, Busy."""
        found = await self._found(data, read, exact=exact)
        began = monotonic()
        async with self._models.using(found) as model:
            waited = model.waited(began)
            asked = await asyncio.to_thread(read, data, sampling_of(model.service))
            asked = replace(asked, keep_seconds=inf) if model.stays else asked
            model.keep_seconds = asked.keep_seconds
            asked = within_context(replace(asked, model=found, load_seconds=waited), model.service)
            asked = as_able(asked, model.service.pair)
            if asked.fill_in is not None or asked.continues:
                asked = await asyncio.to_thread(continued if asked.continues else filled_in, asked, model.service)
            yield asked, model.service

    async def _answer(self, data: bytes, *, read: Read, form: Form, exact: bool, key: int) -> Response:
        found = await self._found(data, read, exact=exact)
        if found.pack not in {each.name for each in self._models.loaded}:
            asked = await asyncio.to_thread(read, data, SamplingOptions())  # what is wrong is told at once
            if not asked.answers and not asked.keep_seconds:
                return JsonResponse(form(asked, asked.name).whole([]))
            reply = form(asked, asked.name)
            if asked.stream and reply.waits:
                making = asyncio.create_task(self._made(data, found, read=read, form=form, exact=exact, key=key))
                return await self._while_loading(making, reply, found.pack)
        return await self._made(data, found, read=read, form=form, exact=exact, key=key)

    async def _while_loading(self, making: "asyncio.Task[Response]", reply: Reply, name: str) -> Response:
        """Return the response that is made; a stream that tells how far its model is, if that takes long.

        What then goes wrong has no status, but an event.
        """
        stack = AsyncExitStack()

        async def left() -> None:
            if not making.done():  # nothing may be awaited before a response is closed: this may be cancelled
                making.cancel()
                await asyncio.wait({making})
            response = None if making.cancelled() or making.exception() else making.result()
            if isinstance(response, EventStream):
                await response.stack.aclose()

        async def sent() -> AsyncIterator[bytes]:
            while not making.done():
                progress, there = self._models.progress(name), name in {each.name for each in self._models.loaded}
                doing = "waiting for the model" if there else f"loading {name}{progress and ': '}{progress}"
                yield reply.waits % doing.encode()
                await asyncio.wait({making}, timeout=_QUIET_SECONDS)
            try:
                response = making.result()
            except EdgeDecodeError as error:
                for event in (*reply.fails(cause(error)), *reply.closes(())):
                    yield reply.encoded(event)
                yield reply.done
                return
            assert isinstance(response, EventStream)
            async for part in response.events:
                yield part

        stack.push_async_callback(left)
        try:
            await asyncio.wait({making}, timeout=_QUIET_SECONDS)
            while not making.done() and self._models.waits(name):  # a refusal for room has its status
                await asyncio.wait({making}, timeout=_QUIET_SECONDS)
        except asyncio.CancelledError:
            await stack.aclose()
            raise
        if making.done():
            return making.result()
        found = EventStream(sent(), stack, media_type=reply.media_type, readers=self._readers)
        return self.noted(reply.asked, found, counts=False)

    async def _made(self, data: bytes, found: ModelName, *, read: Read, form: Form, exact: bool, key: int) -> Response:
        async with AsyncExitStack() as stack:
            asked, service = await stack.enter_async_context(self.asking(data, read, exact=exact))
            asked = replace(asked, key=key)
            reply = form(asked, asked.name or found.pack)
            response = await (self._streamed(reply, service, stack) if asked.stream else self._whole(reply, service))
        return self.noted(asked, response)

    def noted(self, asked: Asked, response: Response, *, counts: bool = True) -> Response:
        """Return a response with what was not followed."""
        if asked.notes:
            self._metrics.count_notes(len(asked.notes) if counts else 0)
            notes = _NOT_IN_HEADERS.sub("?", "; ".join(" ".join(note.split()) for note in asked.notes))
            more = f" and more: {len(asked.notes)} in all" if len(notes) > _LONGEST_NOTE else ""
            response.headers[_NOTE] = notes[:_LONGEST_NOTE] + more
        return response

    async def _found(self, data: bytes, read: Read, *, exact: bool) -> ModelName:
        """Return the model that a body names. Raises what is wrong with the body first, then UnknownModel."""
        try:
            return await self._models.find(named_in(data), exact=exact)
        except UnknownModel:
            await asyncio.to_thread(read, data, SamplingOptions())
            raise

    async def _whole(self, reply: Reply, service: Service) -> Response:
        """Answer without streaming, as many answers at a time as the server runs: a list does not fill its queue."""
        asked, places = reply.asked, asyncio.Semaphore(service.places.parallel)

        async def answered(running: Running, place: int) -> Answered:
            text, thought, reason = "", "", FinishReason.STOP
            entries, logprobs, tokens = Entries(service.pair.tokenizer), list[Entry](), list[int]()
            async for piece in _pieces(running, place):
                text, thought = text + piece.chunk.text, thought + piece.thought
                logprobs += entries.of(piece.chunk.logprobs, text)
                tokens += piece.chunk.tokens
                reason = piece.chunk.finish_reason or reason
            stats = running.stats(place)
            self._metrics.count_answer(stats, calls_of(asked, text))
            return Answered(text, reason, stats, logprobs, thought, tokens)

        async def together(number: int) -> list[Answered]:
            async with places, service.answering(asked, number=number) as running:
                return [await answered(running, place) for place in range(running.count)]

        async with asyncio.TaskGroup() as group:
            firsts = range(0, asked.answers, service.together(asked))
            tasks = [group.create_task(together(number)) for number in firsts]
        return JsonResponse(reply.whole([answer for task in tasks for answer in task.result()]))

    async def _streamed(self, reply: Reply, service: Service, holding: AsyncExitStack) -> Response:
        """Answer with server-sent events, one answer after the other. The first begins before headers are sent, so
        that a refusal has its status. holding: keeps the model in memory; it is taken over unless this raises."""
        stack = AsyncExitStack()
        try:
            running = await stack.enter_async_context(service.answering(reply.asked))
            first = await anext(running.pieces(), None)  # None: it ended at once, and further pieces end too
        except BaseException:
            await stack.aclose()
            raise
        whole = AsyncExitStack()
        whole.push_async_exit(holding.pop_all())
        whole.push_async_exit(stack)

        async def events() -> AsyncIterator[Event]:
            every: list[Stats] = []
            async with stack:
                for number in range(running.count):
                    begun = None if number else first
                    async for part in self._parts(reply, number, running, every, service=service, first=begun):
                        yield part
            for start in range(running.count, reply.asked.answers, running.count):
                try:
                    async with service.answering(reply.asked, number=start) as other:
                        for number in range(start, start + other.count):
                            async for part in self._parts(reply, number, other, every, service=service):
                                yield part
                except EdgeDecodeError as error:
                    for event in reply.fails(cause(error)):
                        yield event
            for event in reply.closes(every):
                yield event

        async def sent() -> AsyncIterator[bytes]:
            async for event in events():
                yield reply.encoded(event)
            yield reply.done

        return EventStream(sent(), whole, media_type=reply.media_type, readers=self._readers)

    async def _parts(
        self,
        reply: Reply,
        number: int,
        running: Running,
        every: list[Stats],
        *,
        service: Service,
        first: Piece | None = None,
    ) -> AsyncIterator[Event]:
        """Yield an answer's events, from its `first` chunk on if that was taken already.

        An answer that may be a call is held back until it ends. Log probabilities are sent with the text of their
        tokens, those of tokens without text at the end. An error in the middle becomes an event, since the status has
        been sent.
        """
        text, sent, calls, place = "", 0, tuple[Call, ...](), number % running.count
        entries, logprobs, tokens = Entries(service.pair.tokenizer), list[Entry](), list[int]()  # not sent yet
        try:
            pieces = running.pieces(place)
            first = first or await anext(pieces, None)  # the prompt's figures are known then
            for event in reply.begins(number, running.stats(place)):
                yield event
            async for piece in _with_first(first, pieces):
                text += piece.chunk.text
                reason = piece.chunk.finish_reason
                held = reply.asked.tools is not None and reply.asked.tools.may_call(text)
                calls = calls_of(reply.asked, text) if held and reason is not None else ()
                shown = "" if calls or (held and reason is None) else text_of(reply.asked, text)[sent:]
                sent += len(shown)
                logprobs += entries.of(piece.chunk.logprobs, text)
                tokens += piece.chunk.tokens
                events = reply.thinks(number, piece.thought) if piece.thought else []
                if shown:
                    events += reply.writes(number, Written(shown, logprobs, piece.report, tokens))
                    logprobs, tokens = [], []
                elif piece.report is not None:
                    events += reply.writes(number, Written("", (), piece.report))
                if reason is not None:
                    end = Answered(text, reason, running.stats(place), logprobs, tokens=tokens)
                    events += reply.ends(number, end, calls)
                for event in events:
                    yield event
        except EdgeDecodeError as error:
            for event in reply.fails(cause(error)):
                yield event
        every.append(running.stats(place))
        self._metrics.count_answer(running.stats(place), calls)


async def _pieces(running: Running, place: int) -> AsyncIterator[Piece]:
    """Yield the pieces of an answer. Raises AnswerFailed for what fails after the first, but for a lack of memory."""
    begun = False
    try:
        async for piece in running.pieces(place):
            begun = True
            yield piece
    except (BudgetExceeded, Busy):
        raise
    except EdgeDecodeError as error:
        raise AnswerFailed(str(error)) if begun else error from None


async def _with_first(first: Piece | None, others: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    if first is not None:
        yield first
    async for piece in others:
        yield piece
