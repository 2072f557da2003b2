"""llama-server's endpoints that want no answer: tokens, the chat template, slots."""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import edgedecode
from edgedecode import InputError
from edgedecode.text.tokenizer import Tokenizer

from ..answering import Answering
from ..guards import JsonResponse
from ..models.one import Models
from ..models.places import Places
from ..offered import context_length, sampling_of
from ..prompts import encoder, prompt_text
from ..requests.fields import read_body
from ..running import Service
from .bodies import read_template
from .replies import generation_settings

_MOST_IDS = 1 << 20
ALIASES = {
    "/completions": "/completion",
    "/chat/completions": "/v1/chat/completions",
    "/responses": "/v1/responses",
    "/embeddings": "/v1/embeddings",
    "/models": "/v1/models",
    "/models/{name:path}": "/v1/models/{name:path}",
    "/v1/health": "/health",
}
"""llama-server's other paths of the same endpoints."""


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """add_special: with the model's leading tokens. parse_special: control tokens that the text spells are such."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    tokens: Annotated[list[int], Meta(max_length=_MOST_IDS)]
    model: str | None = None


class Piece(Struct):
    """A token. piece: its text, or bytes where it is a part of a character."""

    id: int
    piece: str | list[int]


class Tokens(Struct):
    tokens: list[int | Piece]


class Content(Struct):
    content: str


class Prompt(Struct):
    prompt: str


class Slot(Struct):
    """A place for an answer."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class LlamaEndpoints:
    def __init__(self, models: Models, answering: Answering) -> None:
        self._models, self._answering = models, answering

    def routes(self) -> list[Route]:
        posted = {
            "/tokenize": self.tokenized,
            "/detokenize": self.detokenized,
            "/apply-template": self.templated,
        }
        every = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()]
        return [*every, Route("/slots", self.slots)]

    async def tokenized(self, request: Request) -> Response:
        """Answer with the tokens of a text."""
        _, body = read_body(await request.body(), TokenizeBody)
        async with self._models.using(await self._models.find(body.model or "", exact=False)) as model:
            return JsonResponse(await asyncio.to_thread(_tokenized, body, model.service))

    async def detokenized(self, request: Request) -> Response:
        """Answer with the text of tokens."""
        _, body = read_body(await request.body(), DetokenizeBody)
        async with self._models.using(await self._models.find(body.model or "", exact=False)) as model:
            tokenizer = model.service.pair.tokenizer
            if wrong := [each for each in body.tokens if not 0 <= each < tokenizer.size]:
                raise InputError(f"tokens has {wrong[0]}, which is no token's id: 0 to {tokenizer.size - 1}")
            text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=False)
            return JsonResponse(Content(text))

    async def templated(self, request: Request) -> Response:
        """Answer with a conversation as the model reads it."""
        async with self._answering.asking(await request.body(), read_template) as (asked, service):
            text = await asyncio.to_thread(prompt_text, asked, service)
            return self._answering.noted(asked, JsonResponse(Prompt(text)))

    async def slots(self, request: Request) -> Response:
        """Answer which places for answers are taken, with the context of the model that the query names."""
        found = await self._models.find(request.query_params.get("model", ""), exact=False)
        async with self._models.using(found) as model:
            service, places = model.service, self._models.places
            drafts = bool(service.pair.drafter_names(service.options))
            context = context_length(service)
            return JsonResponse([Slot(id, context, drafts, id < places.running) for id in range(places.parallel)])


def llama_props(name: str, context: int, places: Places, service: Service | None = None) -> dict[str, object]:
    """Return what llama-server's clients read of /props. service: of a model that is in memory."""
    settings: dict[str, object] = {"n_ctx": context}
    found = {
        "default_generation_settings": settings,
        "total_slots": places.parallel,
        "model_alias": name,
        "model_path": name,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"edgedecode {edgedecode.__version__}",
    }
    if service is None:
        return found
    settings["params"] = generation_settings(sampling_of(service))
    generation = service.pair.manifest.generation
    return found | {
        "chat_template": service.pair.tokenizer.chat_template.source,
        "bos_token": generation.bos_token or "",
        "eos_token": generation.eos_token or "",
    }


def _tokenized(body: TokenizeBody, service: Service) -> Tokens:
    tokenizer = service.pair.tokenizer
    with encoder(service) as source:
        if body.parse_special:
            ids = source.encode(body.content, add_special=body.add_special)
        else:
            leading = tokenizer.encode("", add_special=True) if body.add_special else []
            ids = [*leading, *source.encode(tokenizer.without_controls(body.content))]
    return Tokens([_piece(id, tokenizer) if body.with_pieces else id for id in ids])


def _piece(id: int, tokenizer: Tokenizer) -> Piece:
    data = tokenizer.token_bytes(id)
    try:
        return Piece(id, data.decode() if data else tokenizer.token_text(id) or "")
    except UnicodeDecodeError:
        return Piece(id, [*data])
