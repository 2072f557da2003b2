"""The endpoints of embeddings: OpenAI's /v1/embeddings, and Ollama's /api/embed and /api/embeddings."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from time import monotonic
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from edgedecode import BudgetExceeded, InputError, Pair

from ..guards import JsonResponse
from ..models.one import Loaded, Models
from ..ollama.keep_alive import KeepAlive, keep_seconds
from ..ollama.models import Name
from ..requests.asked import Prompt
from ..requests.fields import check_fields, read_body
from ..requests.openai import PromptField, read_prompts
from ..running import Service
from ..streams import unless_gone
from .pooling import Embedded, by_last_token, check_embeds, embedded

_NANO = 1_000_000_000


class EmbeddingBody(Struct, frozen=True, kw_only=True):
    """The body of /v1/embeddings. input: as `prompt` of completions. dimensions: the model's own, or none."""

    input: PromptField
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class Embedding(Struct, tag_field="object", tag="embedding"):
    """embedding: base64 is of little-endian float32."""

    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, tag_field="object", tag="list"):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class EmbedBody(Struct, frozen=True, kw_only=True):
    """The body of /api/embed, and of the older /api/embeddings, which has `prompt`. options: none changes a result."""

    model: Name
    input: str | list[str] | None = None
    prompt: str | None = None
    truncate: bool | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive | None = None
    dimensions: Annotated[int, Meta(ge=0)] | None = None


class EmbeddingEndpoints:
    def __init__(self, models: Models) -> None:
        self._models = models
        self._last: WeakKeyDictionary[Pair, bool] = WeakKeyDictionary()
        """Whether a model's last token embeds a text."""

    async def openai(self, request: Request) -> Response:
        return await unless_gone(request, self._openai(await request.body()))

    async def ollama(self, request: Request) -> Response:
        return await unless_gone(request, self._ollama(await request.body(), older=False))

    async def older(self, request: Request) -> Response:
        return await unless_gone(request, self._ollama(await request.body(), older=True))

    async def _openai(self, data: bytes) -> Response:
        value, body = read_body(data, EmbeddingBody)
        check_fields(value, body)
        texts = _texts(body.input)
        found = await self._models.find(body.model or "", exact=False)
        async with self._models.using(found) as model:
            vectors = await self._embedded(model, texts, dimensions=body.dimensions, truncates=False)
        parts = [
            Embedding(
                number,
                b64encode(each.values.astype("<f4").tobytes()).decode()
                if body.encoding_format == "base64"
                else each.values.tolist(),
            )
            for number, each in enumerate(vectors)
        ]
        count = sum(each.tokens for each in vectors)
        return JsonResponse(EmbeddingList(parts, body.model or found.pack, EmbeddingUsage(count, count)))

    async def _ollama(self, data: bytes, *, older: bool) -> Response:
        began = monotonic()
        _, body = read_body(data, EmbedBody)
        seconds = keep_seconds(body.keep_alive)
        given = body.prompt if older else body.input
        texts: tuple[Prompt, ...] = ()  # it only loads the model
        if given:
            texts = _texts(given if isinstance(given, str) else [*given])
        found = await self._models.find(body.model, exact=True)
        async with self._models.using(found) as model:
            waited = model.waited(began)
            model.keep_seconds = model.keep_seconds if model.stays else seconds
            truncates = body.truncate is not False
            vectors = await self._embedded(model, texts, dimensions=body.dimensions, truncates=truncates)
        values = [each.values.tolist() for each in vectors]
        if older:
            return JsonResponse({"embedding": values[0] if values else []})
        return JsonResponse(
            {
                "model": body.model,
                "embeddings": values,
                "total_duration": int((monotonic() - began) * _NANO),
                "load_duration": round(waited * _NANO),
                "prompt_eval_count": sum(each.tokens for each in vectors),
            }
        )

    async def _embedded(
        self, model: Loaded, texts: Sequence[Prompt], *, dimensions: int | None, truncates: bool
    ) -> list[Embedded]:
        """Embed texts one after the other, in a place of an answer."""
        service = model.service
        check_embeds(service)
        size = service.pair.manifest.models["target"].hidden_size
        if dimensions and dimensions != size:
            raise InputError(f"dimensions is {dimensions}: this model's embeddings have {size}, and are not shortened")
        async with service.places.taken():
            if service.pair not in self._last:
                self._last[service.pair] = await asyncio.to_thread(by_last_token, service.pair)
            last = self._last[service.pair]
            return [await _one(service, text, last=last, truncates=truncates) for text in texts]


async def _one(service: Service, text: Prompt, *, last: bool, truncates: bool) -> Embedded:
    """Embed a text; sessions and models that nobody needs make room for it."""
    while True:
        try:
            return await asyncio.to_thread(embedded, service, text, last=last, truncates=truncates)
        except BudgetExceeded:
            if not (await service.drop_session() or await service.places.find_room()):
                raise


def _texts(given: PromptField) -> tuple[Prompt, ...]:
    """Return the texts of a field `input`. Raises InputError."""
    try:
        texts = read_prompts(given)
    except InputError as error:
        raise InputError(str(error).replace("prompt", "input", 1)) from None
    if not all(texts):
        raise InputError("input is empty: a text has at least one token")
    return texts
