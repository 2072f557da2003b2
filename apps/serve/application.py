"""The server's endpoints, as clients of OpenAI, Anthropic and Ollama expect them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from math import inf
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import edgedecode
from edgedecode import BudgetExceeded, ContextExceeded, EdgeDecodeError, FinishReason, SamplingOptions
from edgedecode.decoding.stats import Stats
from edgedecode.errors import cause
from edgedecode.structured.matching import GrammarFailed

from .anthropic.bodies import read_messages
from .anthropic.replies import MessagesReply, TokenCount
from .guards import Guards, JsonResponse, Limits, error_response
from .logprobs import Entries, Entry
from .metrics import Counting, Metrics
from .models.one import Loaded, Models, UnknownModel
from .models.places import Busy
from .offered import Health, Listed, ModelList, described_model, memory, props, sampling_of, within_context
from .ollama.bodies import read_chat as read_ollama_chat
from .ollama.bodies import read_generate
from .ollama.models import FOLLOWED, loaded, shown, shown_name, tags
from .ollama.replies import OllamaReply
from .openapi import description
from .page import page_routes
from .prompts import prompt_tokens
from .reasoning import as_able
from .replies import Answered, CompletionsReply, Event, calls_of, text_of
from .requests.asked import Asked, ChatBody, CompletionBody, ModelName, read_chat, read_completion
from .requests.fields import UNSUPPORTED, named_in
from .requests.tools import Call
from .responses.bodies import UNSUPPORTED_RESPONSES, ResponseBody, read_response
from .responses.kept_items import KeptItems
from .responses.replies import ResponsesReply
from .rounds import Piece
from .running import Running, Service
from .streams import EventStream, unless_gone

_Read: TypeAlias = Callable[[bytes, SamplingOptions], Asked]
_FIELDS = (
    frozenset(UNSUPPORTED)
    | frozenset(UNSUPPORTED_RESPONSES)
    | {each.name for kind in (ChatBody, CompletionBody, ResponseBody) for each in fields(kind)}
)
_PATH = re.compile(r"([a-z_]+)[\w.\[\]$-]*")
_Reply: TypeAlias = CompletionsReply | ResponsesReply | OllamaReply | MessagesReply
_Form: TypeAlias = Callable[[Asked, str], _Reply]
_NOTE = "Edgedecode-Note"
"""A header of replies: what of the request was not followed."""
_NOT_IN_HEADERS = re.compile(r"[^ -~]")
_LONGEST_NOTE = 2000
"""Characters that clients and proxies take."""


def create_app(models: Models, limits: Limits) -> ASGIApp:
    """Return the ASGI application over a server's models, which it closes at shutdown."""
    metrics = Metrics()
    endpoints = _Endpoints(models, metrics, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await models.close()

    kept = KeptItems(models.budget)
    forms: list[tuple[str, _Read, _Form, bool]] = [
        ("/v1/chat/completions", read_chat, CompletionsReply, False),
        ("/v1/completions", read_completion, CompletionsReply, False),
        (
            "/v1/responses",
            partial(read_response, find=kept.find, before=kept.before),
            partial(ResponsesReply, keep=kept.keep),
            False,
        ),
        ("/v1/messages", read_messages, MessagesReply, False),
        ("/api/chat", read_ollama_chat, OllamaReply, True),
        ("/api/generate", read_generate, partial(OllamaReply, generates=True), True),
    ]
    routes = [
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics_text),
        Route("/props", endpoints.props),
        Route("/memory", endpoints.memory),
        Route("/openapi.json", endpoints.openapi),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.one_model),
        *(
            Route(path, partial(endpoints.answered, read=read, form=form, exact=exact), methods=["POST"])
            for path, read, form, exact in forms
        ),
        Route("/v1/messages/count_tokens", endpoints.counted, methods=["POST"]),
        Route("/api/version", endpoints.version),
        Route("/api/tags", endpoints.tags),
        Route("/api/ps", endpoints.loaded),
        Route("/api/show", endpoints.shown, methods=["POST"]),
        *page_routes(),
    ]
    handlers = {404: _not_found, 405: _not_allowed, EdgeDecodeError: _refused, Exception: _broken}
    guards = Middleware(Guards, limits=limits)
    app: ASGIApp = Starlette(routes=routes, middleware=[guards], lifespan=lifespan, exception_handlers=handlers)
    if limits.origins:
        app = CORSMiddleware(
            app,
            limits.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            allow_private_network=True,  # a public page may ask for a server on this machine
            expose_headers=("*",),
        )
    return Counting(app, metrics=metrics, paths=[each.path for each in routes if isinstance(each, Route)])


class _Endpoints:
    def __init__(self, models: Models, metrics: Metrics, limits: Limits) -> None:
        self._models, self._metrics, self._seconds = models, metrics, limits.seconds

    async def health(self, _: Request) -> Response:
        """Answer whether requests are taken."""
        closing = self._models.places.closing
        return JsonResponse(
            Health("closing") if closing else Health("ok", edgedecode.__version__), 503 if closing else 200
        )

    async def metrics_text(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.text(self._models), media_type="text/plain; version=0.0.4")

    async def props(self, request: Request) -> Response:
        """Describe a model, which is loaded for it: the one that the query names, or that requests without one get."""
        found = await self._models.find(request.query_params.get("model", ""), exact=False)
        async with self._models.using(found) as model:
            return JsonResponse(props(model.name, model.service))

    async def memory(self, _: Request) -> Response:
        models = self._models
        return JsonResponse(await asyncio.to_thread(memory, models.budgets, models.budget.limit, models.places))

    async def openapi(self, _: Request) -> Response:
        return JsonResponse(description(await self._models.names()))

    async def models(self, _: Request) -> Response:
        return JsonResponse(ModelList("list", [described_model(each) for each in await self._models.listed()]))

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        listed = await self._listed(name)
        return JsonResponse(described_model(replace(listed, name=name)))

    async def version(self, _: Request) -> Response:
        return JsonResponse({"version": FOLLOWED})

    async def tags(self, _: Request) -> Response:
        return JsonResponse(tags(await self._models.listed()))

    async def loaded(self, _: Request) -> Response:
        return JsonResponse(loaded(self._models.loaded))

    async def shown(self, request: Request) -> Response:
        name = shown_name(await request.body())
        found = await self._models.find(name, exact=True)
        listed = await self._listed(name)
        pairs = {each.name: each.service.pair for each in self._models.loaded}
        return JsonResponse(shown(listed, pairs.get(found.pack)))

    async def _listed(self, name: str) -> Listed:
        """Return what is known about the model of a name, which may combine an adapter and a mode."""
        found = await self._models.find(name, exact=True)
        return next(each for each in await self._models.listed() if each.name == found.pack)

    async def answered(self, request: Request, *, read: _Read, form: _Form, exact: bool) -> Response:
        """Answer a request that `read` reads, in the form of its endpoint. exact: as in `Models.find`."""
        data = await request.body()
        return await unless_gone(request, self._answer(data, read=read, form=form, exact=exact))

    async def counted(self, request: Request) -> Response:
        """Answer how many tokens the prompt of one of Anthropic's messages has."""
        data = await request.body()
        found = await self._found(data, read_messages, exact=False)
        async with self._models.using(found) as model:
            asked = await self._asked(data, read_messages, found, model)
            return JsonResponse(TokenCount(await asyncio.to_thread(prompt_tokens, asked, model.service)))

    async def _answer(self, data: bytes, *, read: _Read, form: _Form, exact: bool) -> Response:
        models = self._models
        found = await self._found(data, read, exact=exact)
        if found.pack not in {each.name for each in models.loaded}:
            asked = await asyncio.to_thread(read, data, SamplingOptions())  # what is wrong is told at once
            if not asked.answers and not asked.keep_seconds:
                return JsonResponse(form(asked, asked.name).whole([]))
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(models.using(found))
            service = model.service
            asked = await self._asked(data, read, found, model)
            model.keep_seconds = asked.keep_seconds
            reply = form(asked, asked.name or found.pack)
            response = await (self._streamed(reply, service, stack) if asked.stream else self._whole(reply, service))
        if asked.notes:
            self._metrics.count_notes(len(asked.notes))
            notes = _NOT_IN_HEADERS.sub("?", "; ".join(" ".join(note.split()) for note in asked.notes))
            more = f" and more: {len(asked.notes)} in all" if len(notes) > _LONGEST_NOTE else ""
            response.headers[_NOTE] = notes[:_LONGEST_NOTE] + more
        return response

    async def _found(self, data: bytes, read: _Read, *, exact: bool) -> ModelName:
        """Return the model that a body names. Raises what is wrong with the body first, then UnknownModel."""
        try:
            return await self._models.find(named_in(data), exact=exact)
        except UnknownModel:
            await asyncio.to_thread(read, data, SamplingOptions())
            raise

    async def _asked(self, data: bytes, read: _Read, found: ModelName, model: Loaded) -> Asked:
        """Return what a body asks of a model. Raises InputError."""
        asked = await asyncio.to_thread(read, data, sampling_of(model.service))
        asked = replace(asked, keep_seconds=inf) if model.stays else asked
        asked = within_context(replace(asked, model=found), model.service)
        return as_able(asked, model.service.pair.tokenizer.chat_template.source)

    async def _whole(self, reply: _Reply, service: Service) -> Response:
        """Answer without streaming, as many answers at a time as the server runs: a list does not fill its queue."""
        places = asyncio.Semaphore(service.places.parallel)

        async def one(number: int) -> Answered:
            text, thought, reason = "", "", FinishReason.STOP
            entries, logprobs = Entries(service.pair.tokenizer), list[Entry]()
            async with places, service.answering(reply.asked, number=number) as running:
                async for piece in _pieces(running):
                    text, thought = text + piece.chunk.text, thought + piece.thought
                    logprobs += entries.of(piece.chunk.logprobs, text)
                    reason = piece.chunk.finish_reason or reason
                stats = running.stats
            self._metrics.count_answer(stats, calls_of(reply.asked, text))
            return Answered(text, reason, stats, logprobs, thought)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(reply.asked.answers)]
        return JsonResponse(reply.whole([task.result() for task in tasks]))

    async def _streamed(self, reply: _Reply, service: Service, holding: AsyncExitStack) -> Response:
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
                async for part in self._parts(reply, 0, running, every, service=service, first=first):
                    yield part
            for number in range(1, reply.asked.answers):
                try:
                    async with service.answering(reply.asked, number=number) as other:
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

        return EventStream(sent(), whole, media_type=reply.media_type, seconds=self._seconds)

    async def _parts(
        self,
        reply: _Reply,
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
        text, sent, calls = "", 0, tuple[Call, ...]()
        entries, unsent = Entries(service.pair.tokenizer), list[Entry]()
        try:
            for event in reply.begins(number, running.stats):
                yield event
            async for piece in _with_first(first, running.pieces()):
                text += piece.chunk.text
                reason = piece.chunk.finish_reason
                held = reply.asked.tools is not None and reply.asked.tools.may_call(text)
                calls = calls_of(reply.asked, text) if held and reason is not None else ()
                shown = "" if calls or (held and reason is None) else text_of(reply.asked, text)[sent:]
                sent += len(shown)
                unsent += entries.of(piece.chunk.logprobs, text)
                logprobs = unsent if shown else []
                unsent = [] if shown else unsent
                events = reply.thinks(number, piece.thought) if piece.thought else []
                if shown or piece.report is not None:
                    events += reply.writes(number, shown, logprobs, piece.report)
                if reason is not None:
                    events += reply.ends(number, Answered(text, reason, running.stats, unsent), calls)
                for event in events:
                    yield event
        except EdgeDecodeError as error:
            for event in reply.fails(cause(error)):
                yield event
        every.append(running.stats)
        self._metrics.count_answer(running.stats, calls)


class _AnswerFailed(EdgeDecodeError):
    """An answer failed after it had begun, which is no fault of the request."""


async def _pieces(running: Running) -> AsyncIterator[Piece]:
    """Yield the pieces of an answer. Raises _AnswerFailed for what fails after the first, but for a lack of memory."""
    begun = False
    try:
        async for piece in running.pieces():
            begun = True
            yield piece
    except (BudgetExceeded, Busy):
        raise
    except EdgeDecodeError as error:
        raise _AnswerFailed(str(error)) if begun else error from None


async def _with_first(first: Piece | None, others: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    if first is not None:
        yield first
    async for piece in others:
        yield piece


async def _refused(_: Request, error: Exception) -> Response:
    """Answer a request that raised EdgeDecodeError."""
    message = cause(error)
    if isinstance(error, UnknownModel):
        return error_response(404, message, code="model_not_found", param="model")
    if isinstance(error, Busy):
        return error_response(503, message, kind="server_error", code="busy")
    if isinstance(error, _AnswerFailed | GrammarFailed):
        return error_response(500, message, kind="server_error")
    if isinstance(error, ContextExceeded):
        return error_response(400, message, code="context_length_exceeded")
    if isinstance(error, BudgetExceeded):
        return error_response(507, message, kind="server_error", code="memory")
    path = _PATH.match(message)  # messages about a field begin with its path
    return error_response(400, message, param=path[0] if path is not None and path[1] in _FIELDS else None)


async def _not_found(request: Request, _: Exception) -> Response:
    path, known = request.url.path[:80], [each.path for each in request.app.routes if isinstance(each, Route)]
    near = get_close_matches(path, known, 1, 0.8)
    offered = ", ".join(each for each in known if each.startswith("/v1/") and "{" not in each)
    hint = f"did you mean {near[0]}?" if near else f"this server has {offered}"
    return error_response(404, f"there is no {path}: {hint}", code="not_found")


async def _not_allowed(request: Request, error: Exception) -> Response:
    reply = error_response(405, f"{request.method} is not allowed on {request.url.path[:80]}", code="method")
    reply.headers.update(getattr(error, "headers", None) or {})  # Allow
    return reply


async def _broken(request: Request, error: Exception) -> Response:
    message = f"the server failed ({type(error).__name__}): please report it"
    return error_response(500, message, kind="server_error")
