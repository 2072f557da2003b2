"""The description of the server's endpoints in OpenAPI 3.1, from the types of bodies and replies."""

from collections.abc import Mapping
from typing import Any, TypeAlias, get_args, get_origin

from msgspec.json import schema_components

import edgedecode

from .anthropic.bodies import MessagesBody
from .anthropic.replies import AnthropicMessage, TokenCount
from .embeddings.endpoints import EmbedBody, EmbeddingBody, EmbeddingList
from .errors.forms import error_kind
from .llama_server.bodies import InfillBody, LlamaBody
from .llama_server.endpoints import ALIASES, Content, DetokenizeBody, Prompt, Slot, TokenizeBody, Tokens
from .offered import Health, Model, ModelList
from .ollama.bodies import GenerateBody, OllamaChatBody
from .ollama.library import PullBody
from .ollama.models import ShowBody
from .replies import ChatCompletion, Completion
from .requests.fields import NO_EFFECT, UNSUPPORTED
from .requests.openai import ChatBody, CompletionBody
from .responses.bodies import UNSUPPORTED_RESPONSES, ResponseBody
from .responses.replies import Response
from .verify.endpoint import Verified, VerifyBody

_Object: TypeAlias = dict[str, Any]

_LINES, _EVENTS = "application/x-ndjson", "text/event-stream"
_POSTED: Mapping[str, tuple[str, type, Any, str]] = {
    "/v1/chat/completions": ("Answer a conversation", ChatBody, ChatCompletion, _EVENTS),
    "/v1/completions": ("Continue a text", CompletionBody, Completion, _EVENTS),
    "/v1/responses": ("Answer a conversation, in the form of responses", ResponseBody, Response, _EVENTS),
    "/v1/messages": ("Answer a conversation, in Anthropic's form", MessagesBody, AnthropicMessage, _EVENTS),
    "/v1/messages/count_tokens": ("Count a conversation's tokens", MessagesBody, TokenCount, ""),
    "/completion": ("Continue a text, in llama-server's form", LlamaBody, None, _EVENTS),
    "/infill": ("Fill in between two texts, in llama-server's form", InfillBody, None, _EVENTS),
    "/tokenize": ("Tokens of a text", TokenizeBody, Tokens, ""),
    "/detokenize": ("Text of tokens", DetokenizeBody, Content, ""),
    "/apply-template": ("A conversation as the model reads it", ChatBody, Prompt, ""),
    "/api/chat": ("Answer a conversation, in Ollama's form", OllamaChatBody, None, _LINES),
    "/api/generate": ("Answer or continue a text, in Ollama's form", GenerateBody, None, _LINES),
    "/v1/embeddings": ("Embed texts", EmbeddingBody, EmbeddingList, ""),
    "/v1/verify": ("Verify a device's drafts, with --verify-drafts", VerifyBody, Verified, _LINES),
    "/api/embed": ("Embed texts, in Ollama's form", EmbedBody, None, ""),
    "/api/embeddings": ("Embed a text, in Ollama's older form", EmbedBody, None, ""),
    "/api/delete": ("Remove a pulled model, in Ollama's form", ShowBody, None, ""),
    "/api/pull": ("Download a model, in Ollama's form", PullBody, None, _LINES),
    "/api/show": ("Describe a model, in Ollama's form", ShowBody, None, ""),
}
"""By path: what it does, its body, its reply (None: any), and the type of a stream."""
_STRICT = (ChatBody, CompletionBody, ResponseBody)
"""Bodies without fields that are not known."""
_READ: Mapping[str, tuple[str, Any]] = {
    "/props": ("Names, modes, defaults and the engine", None),
    "/memory": ("The memory budget and what the process holds", None),
    "/openapi.json": ("This description", None),
    "/slots": ("The places for answers", list[Slot]),
    "/v1/models": ("The models", ModelList),
    "/api/version": ("Which version of Ollama's API this follows", None),
    "/api/tags": ("The models, in Ollama's form", None),
    "/api/ps": ("The models in memory, in Ollama's form", None),
}
_GUARDS = {
    400: "The client went away, or the body is wrong.",
    401: "The API key is missing or wrong.",
    403: "The request comes from another origin, which --allow-origin does not name.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    421: "The Host header names another server.",
    429: "As many requests of this key run or wait as it may have.",
    500: "The server failed.",
}
"""Statuses of every endpoint."""
_NO_MODEL = "There is no such model."
_ANSWERS = {
    404: _NO_MODEL,
    503: "Too many requests wait, or the server is closing: try again later.",
    507: "The memory budget has no room for the request.",
}
"""Statuses of the endpoints that answer with the model, besides `_GUARDS`."""


def description(models: list[str]) -> _Object:
    """Return the description. models: the names that `model` may have."""
    kinds = {kind for _, body, reply, _ in _POSTED.values() for kind in (body, reply) if kind is not None}
    kinds |= {Health, ModelList, Model, Slot, *(error_kind(path) for path in _POSTED)}
    every = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = schema_components(every, ref_template="#/components/schemas/{name}")
    schemas = _renamed(components)
    for body in _STRICT:
        schema = schemas[body.__name__]
        schema["properties"]["model"]["examples"] = models
        unsupported = UNSUPPORTED_RESPONSES if body is ResponseBody else UNSUPPORTED
        for name, nothing in unsupported.items():
            schema["properties"].setdefault(name, {"enum": [None, *nothing], "description": "Not offered."})
        for name in NO_EFFECT:
            schema["properties"][name] = {"description": "No effect on the answer."}
        schema["additionalProperties"] = False
    health = _read("/health", "Whether requests are taken", _json(Health))
    health["get"]["responses"]["503"] = {"description": "Otherwise.", "content": _json(Health)}
    one = _read("/v1/models/{name}", "One model", _json(Model), {404: _NO_MODEL})
    named = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths = {
        "/health": health,
        "/metrics": _read("/metrics", "Counters for Prometheus", {"text/plain": {"schema": {"type": "string"}}}),
        "/v1/models/{name}": {"parameters": [named], **one},
        **{path: _read(path, summary, _json(reply)) for path, (summary, reply) in _READ.items()},
        **{path: _posted(path) for path in _POSTED},
    }
    aliases = {path.replace(":path", ""): same.replace(":path", "") for path, same in ALIASES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edgedecode",
            "version": edgedecode.__version__,
            "description": "The APIs of OpenAI, Anthropic, Ollama and llama-server. OpenAI's refuses fields that it "
            "does not know or does not support, the others leave them out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths | {path: paths[same] for path, same in aliases.items()},
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _read(path: str, summary: str, content: _Object, more: Mapping[int, str] | None = None) -> _Object:
    return {"get": {"summary": summary, "responses": _responses(path, content, {**_GUARDS, **(more or {})})}}


def _posted(path: str) -> _Object:
    summary, body, reply, stream = _POSTED[path]
    content = _json(reply) | ({stream: {}} if stream else {})  # OpenAPI 3.1 has no schema for the parts of a stream
    described = {"summary": summary, "requestBody": {"required": True, "content": _json(body)}}
    method = "delete" if path == "/api/delete" else "post"
    return {method: described | {"responses": _responses(path, content, {**_GUARDS, **_ANSWERS})}}


def _responses(path: str, content: _Object, errors: Mapping[int, str]) -> _Object:
    form = _json(error_kind(path))
    refusals = {str(status): {"description": why, "content": form} for status, why in errors.items()}
    return {"200": {"description": "The reply.", "content": content}, **refusals}


def _json(kind: type | None) -> _Object:
    """Return the content of a reply of this kind; None: any JSON."""
    return {"application/json": {"schema": {} if kind is None else _schema(kind)}}


def _schema(kind: type) -> _Object:
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    return {"$ref": f"#/components/schemas/{kind.__name__.lstrip('_')}"}


def _renamed(value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return the schemas without the leading underscore of types that are private to a module."""
    if isinstance(value, dict):
        return {name.lstrip("_"): _renamed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    return value.replace("/_", "/").removeprefix("_") if isinstance(value, str) else value
