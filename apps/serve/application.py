"""The server's endpoints, as clients of OpenAI, Anthropic and Ollama expect them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import edgedecode
from edgedecode import EdgeDecodeError

from .answering import Answering, Form, Read
from .anthropic.bodies import read_messages
from .anthropic.replies import MessagesReply, TokenCount
from .embeddings.endpoints import EmbeddingEndpoints
from .errors.statuses import broken, not_allowed, not_found, refused
from .guards import Guards, JsonResponse, Limits
from .llama_server.bodies import read_infill, read_llama_completion
from .llama_server.endpoints import ALIASES, LlamaEndpoints, llama_props
from .llama_server.replies import LlamaReply
from .metrics import Counting, Metrics
from .models.one import Models
from .offered import Health, Listed, ModelList, context_length, described_model, memory, props, unloaded_props
from .ollama.bodies import read_chat as read_ollama_chat
from .ollama.bodies import read_generate
from .ollama.library import LibraryEndpoints
from .ollama.models import FOLLOWED, loaded, shown, shown_name, tags
from .ollama.replies import OllamaReply
from .openapi import description
from .page import page_routes
from .prompts import prompt_tokens
from .replies import CompletionsReply
from .requests.openai import read_chat, read_completion
from .responses.bodies import read_response
from .responses.kept_items import KeptItems
from .responses.replies import ResponsesReply
from .streams import Readers
from .verify.endpoint import VerifyEndpoint


def create_app(models: Models, limits: Limits, *, verifies: bool = False) -> ASGIApp:
    """Return the ASGI application over a server's models, which it closes at shutdown.

    verifies: drafts of other devices too.
    """
    metrics, readers = Metrics(), Readers(seconds=limits.seconds)
    answering = Answering(models, metrics, readers)
    endpoints = _Endpoints(models, metrics, answering)
    library, embedding = LibraryEndpoints(models, readers), EmbeddingEndpoints(models)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await models.close()
        await library.ended()

    kept = defaultdict[int, KeptItems](lambda: KeptItems(models.budget))

    async def responses(request: Request) -> Response:
        """Answer with what was kept for the request's key: those of other keys are not found."""
        own = kept[request.scope["key"]]
        read = partial(read_response, find=own.find, before=own.before)
        return await answering.answered(request, read=read, form=partial(ResponsesReply, keep=own.keep), exact=False)

    def answers(path: str, read: Read, form: Form, *, exact: bool = False) -> Route:
        return Route(path, partial(answering.answered, read=read, form=form, exact=exact), methods=["POST"])

    routes = [
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics_text),
        Route("/props", endpoints.props),
        Route("/memory", endpoints.memory),
        Route("/openapi.json", endpoints.openapi),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.one_model),
        answers("/v1/chat/completions", read_chat, CompletionsReply),
        answers("/v1/completions", read_completion, CompletionsReply),
        Route("/v1/responses", responses, methods=["POST"]),
        answers("/v1/messages", read_messages, MessagesReply),
        answers("/completion", read_llama_completion, LlamaReply),
        answers("/infill", read_infill, LlamaReply),
        answers("/api/chat", read_ollama_chat, OllamaReply, exact=True),
        answers("/api/generate", read_generate, partial(OllamaReply, generates=True), exact=True),
        Route("/v1/messages/count_tokens", endpoints.counted, methods=["POST"]),
        *LlamaEndpoints(models, answering).routes(),
        Route("/v1/embeddings", embedding.openai, methods=["POST"]),
        Route("/api/embed", embedding.ollama, methods=["POST"]),
        Route("/api/embeddings", embedding.older, methods=["POST"]),
        Route("/api/version", endpoints.version),
        Route("/api/tags", endpoints.tags),
        Route("/api/ps", endpoints.loaded),
        Route("/api/show", endpoints.shown, methods=["POST"]),
        Route("/api/pull", library.pull, methods=["POST"]),
        Route("/api/delete", library.delete, methods=["DELETE"]),
        *([Route("/v1/verify", VerifyEndpoint(models, readers).verify, methods=["POST"])] if verifies else []),
        *page_routes(),
    ]
    known = {each.path: each for each in routes if isinstance(each, Route)}
    routes += [Route(path, known[same].endpoint, methods=known[same].methods) for path, same in ALIASES.items()]
    handlers = {404: not_found, 405: not_allowed, EdgeDecodeError: refused, Exception: broken}
    guards = Middleware(Guards, limits=limits, most=models.places.parallel + models.places.waiting)
    app: ASGIApp = Starlette(routes=routes, middleware=[guards], lifespan=lifespan, exception_handlers=handlers)
    if limits.origins:
        app = CORSMiddleware(
            app,
            limits.origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_private_network=True,  # a public page may ask for a server on this machine
            expose_headers=("*",),
        )
    return Counting(app, metrics=metrics, paths=[each.path for each in routes if isinstance(each, Route)])


class _Endpoints:
    def __init__(self, models: Models, metrics: Metrics, answering: Answering) -> None:
        self._models, self._metrics, self._answering = models, metrics, answering

    async def health(self, _: Request) -> Response:
        """Answer whether requests are taken."""
        closing = self._models.places.closing
        return JsonResponse(
            Health("closing") if closing else Health("ok", edgedecode.__version__), 503 if closing else 200
        )

    async def metrics_text(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.text(self._models), media_type="text/plain; version=0.0.4")

    async def props(self, request: Request) -> Response:
        """Describe the model that the query names, which is loaded for it, or that requests without one get."""
        models, name = self._models, request.query_params.get("model", "")
        found, library = await models.find(name, exact=False), {"library": models.serves_library}
        if not name and found.pack not in {each.name for each in models.loaded}:
            listed = await self._listed(found.pack)
            told = llama_props(listed.name, listed.context, models.places) | unloaded_props(listed)
            return JsonResponse(told | library)
        async with models.using(found) as model:
            service = model.service
            told = llama_props(model.name, context_length(service), models.places, service)
            return JsonResponse(told | props(model.name, service) | library)

    async def memory(self, _: Request) -> Response:
        models = self._models
        return JsonResponse(await asyncio.to_thread(memory, models.budgets, models.budget.limit, models.places))

    async def openapi(self, _: Request) -> Response:
        return JsonResponse(description(await self._models.names()))

    async def models(self, _: Request) -> Response:
        return JsonResponse(ModelList.of([described_model(each) for each in await self._models.listed()]))

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

    async def counted(self, request: Request) -> Response:
        """Answer how many tokens the prompt of one of Anthropic's messages has."""
        async with self._answering.asking(await request.body(), read_messages) as (asked, service):
            return JsonResponse(TokenCount(await asyncio.to_thread(prompt_tokens, asked, service)))
