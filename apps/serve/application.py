"""The server's endpoints, as clients of OpenAI and Ollama expect them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import edgedecode
from edgedecode import BudgetExceeded, ContextExceeded, EdgeDecodeError, FinishReason, Pair, SamplingOptions
from edgedecode.decoding.stats import Stats
from edgedecode.errors import cause
from edgedecode.options import sampling_defaults
from edgedecode.structured.matching import GrammarFailed

from .guards import Guards, JsonResponse, Limits, error_response
from .kept_items import KeptItems
from .logprobs import Entries, Entry
from .metrics import Counting, Metrics
from .offered import Health, Models, context_length, described_model, memory, model_names, named_model, props
from .ollama.bodies import read_chat as read_ollama_chat
from .ollama.bodies import read_generate
from .ollama.models import FOLLOWED, listed_model, loaded, shown, shown_name, tags
from .ollama.replies import OllamaReply
from .openapi import description
from .page import page_routes
from .reasoning import as_able
from .replies import Answered, CompletionsReply, Event, calls_of, text_of
from .requests.asked import Asked, ChatBody, CompletionBody, ModelName, read_chat, read_completion
from .requests.fields import UNSUPPORTED
from .requests.responses import UNSUPPORTED_RESPONSES, ResponseBody, read_response
from .requests.tools import Call
from .responses import ResponsesReply
from .rounds import Piece
from .running import Busy, Running, Service
from .streams import EventStream, unless_gone

_Read: TypeAlias = Callable[[bytes, SamplingOptions], Asked]
_FIELDS = (
    frozenset(UNSUPPORTED)
    | frozenset(UNSUPPORTED_RESPONSES)
    | {each.name for kind in (ChatBody, CompletionBody, ResponseBody) for each in fields(kind)}
)
_PATH = re.compile(r"([a-z_]+)[\w.\[\]$-]*")
_Reply: TypeAlias = CompletionsReply | ResponsesReply | OllamaReply
_Form: TypeAlias = Callable[[Asked, str], _Reply]
_Find: TypeAlias = Callable[[str], ModelName | None]
_NOTE = "Edgedecode-Note"
"""A header of replies: what of the request was not followed."""
_LONGEST_NOTE = 2000
"""Characters that clients and proxies take."""


def create_app(service: Service, limits: Limits) -> ASGIApp:
    """Return the ASGI application over a service, which it closes at shutdown."""
    metrics = Metrics()
    endpoints = _Endpoints(service, metrics, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    kept = KeptItems(service.pair.budget)
    named = partial(named_model, pair=service.pair, strict=limits.strict_model)
    listed, context = partial(listed_model, pair=service.pair), context_length(service)
    forms: list[tuple[str, _Read, _Form, _Find]] = [
        ("/v1/chat/completions", read_chat, CompletionsReply, named),
        ("/v1/completions", read_completion, CompletionsReply, named),
        (
            "/v1/responses",
            partial(read_response, find=kept.find, before=kept.before),
            partial(ResponsesReply, keep=kept.keep),
            named,
        ),
        ("/api/chat", partial(read_ollama_chat, context=context), OllamaReply, listed),
        ("/api/generate", partial(read_generate, context=context), partial(OllamaReply, generates=True), listed),
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
            Route(path, partial(endpoints.answered, read=read, form=form, find=find), methods=["POST"])
            for path, read, form, find in forms
        ),
        Route("/api/version", endpoints.version),
        Route("/api/tags", endpoints.tags),
        Route("/api/ps", endpoints.loaded),
        Route("/api/show", endpoints.shown, methods=["POST"]),
        *page_routes(),
    ]
    handlers = {404: _not_found, 405: _not_allowed, Exception: _broken}
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
    def __init__(self, service: Service, metrics: Metrics, limits: Limits) -> None:
        self._service, self._metrics, self._seconds = service, metrics, limits.seconds
        self._defaults = service.options.sampling or sampling_defaults(service.pair.manifest.generation)

    async def health(self, _: Request) -> Response:
        """Answer whether requests are taken."""
        closing = self._service.closing
        return JsonResponse(
            Health("closing") if closing else Health("ok", edgedecode.__version__), 503 if closing else 200
        )

    async def metrics_text(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.text(self._service), media_type="text/plain; version=0.0.4")

    async def props(self, _: Request) -> Response:
        return JsonResponse(props(self._service, self._defaults))

    async def memory(self, _: Request) -> Response:
        return JsonResponse(await asyncio.to_thread(memory, self._service))

    async def openapi(self, _: Request) -> Response:
        return JsonResponse(description(model_names(self._service.pair)))

    async def models(self, _: Request) -> Response:
        data = [described_model(name, self._service) for name in model_names(self._service.pair)]
        return JsonResponse(Models("list", data))

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name or named_model(name, self._service.pair, strict=True) is None:
            return _unknown_model(name, self._service.pair)
        return JsonResponse(described_model(name, self._service))

    async def version(self, _: Request) -> Response:
        return JsonResponse({"version": FOLLOWED})

    async def tags(self, _: Request) -> Response:
        return JsonResponse(tags(self._service))

    async def loaded(self, _: Request) -> Response:
        return JsonResponse(loaded(self._service))

    async def shown(self, request: Request) -> Response:
        try:
            name = shown_name(await request.body())
        except EdgeDecodeError as error:
            return _refused(error)
        if listed_model(name, self._service.pair) is None:
            return _unknown_model(name, self._service.pair)
        return JsonResponse(shown(self._service))

    async def answered(self, request: Request, *, read: _Read, form: _Form, find: _Find) -> Response:
        """Answer a request that `read` reads, in the form of its endpoint. find: which model a name means there."""
        data = await request.body()
        try:
            asked = await asyncio.to_thread(read, data, self._defaults)
            model = find(asked.name)
            if model is None:
                return _unknown_model(asked.name, self._service.pair)
            asked = as_able(replace(asked, model=model), self._service.pair.tokenizer.chat_template.source)
            reply = form(asked, asked.name or model.pack)
            response = await unless_gone(request, self._streamed(reply) if asked.stream else self._whole(reply))
            if asked.notes:
                self._metrics.count_notes(len(asked.notes))
                notes = "; ".join(" ".join(note.split()) for note in asked.notes).encode("ascii", "replace").decode()
                more = f" and more: {len(asked.notes)} in all" if len(notes) > _LONGEST_NOTE else ""
                response.headers[_NOTE] = notes[:_LONGEST_NOTE] + more
            return response
        except EdgeDecodeError as error:
            return _refused(error)

    async def _whole(self, reply: _Reply) -> Response:
        """Answer without streaming, as many answers at a time as the service runs: a list does not fill its queue."""
        places = asyncio.Semaphore(self._service.parallel)

        async def one(number: int) -> Answered:
            text, thought, reason = "", "", FinishReason.STOP
            entries, logprobs = Entries(self._service.pair.tokenizer), list[Entry]()
            async with places, self._service.answering(reply.asked, number=number) as running:
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

    async def _streamed(self, reply: _Reply) -> Response:
        """Answer with server-sent events, one answer after the other. The first begins before headers are sent, so
        that a refusal has its status."""
        stack = AsyncExitStack()
        try:
            running = await stack.enter_async_context(self._service.answering(reply.asked))
            first = await anext(running.pieces(), None)  # None: it ended at once, and further pieces end too
        except BaseException:
            await stack.aclose()
            raise

        async def events() -> AsyncIterator[Event]:
            every: list[Stats] = []
            async with stack:
                async for part in self._parts(reply, 0, running, every, first=first):
                    yield part
            for number in range(1, reply.asked.answers):
                try:
                    async with self._service.answering(reply.asked, number=number) as other:
                        async for part in self._parts(reply, number, other, every):
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

        return EventStream(sent(), stack, media_type=reply.media_type, seconds=self._seconds)

    async def _parts(
        self, reply: _Reply, number: int, running: Running, every: list[Stats], *, first: Piece | None = None
    ) -> AsyncIterator[Event]:
        """Yield an answer's events, from its `first` chunk on if that was taken already.

        An answer that may be a call is held back until it ends. Log probabilities are sent with the text of their
        tokens, those of tokens without text at the end. An error in the middle becomes an event, since the status has
        been sent.
        """
        text, sent, calls = "", 0, tuple[Call, ...]()
        entries, unsent = Entries(self._service.pair.tokenizer), list[Entry]()
        try:
            for event in reply.begins(number):
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


def _unknown_model(name: str, pair: Pair) -> Response:
    known = ", ".join(model_names(pair))
    message = f"there is no model {name[:80]!r}; this server has: {known}"
    return error_response(404, message, code="model_not_found", param="model")


def _refused(error: EdgeDecodeError) -> Response:
    message = cause(error)
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
