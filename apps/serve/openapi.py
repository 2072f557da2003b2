"""The description of the server's endpoints in OpenAPI 3.1, from the types of bodies and replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msgspec.json import schema_components

import edgedecode

from .requests.asked import ChatBody, CompletionBody
from .requests.fields import NO_EFFECT, UNSUPPORTED
from .requests.responses import UNSUPPORTED_RESPONSES, ResponseBody
from .responses import ResponseError, ResponseStatus

_Object: TypeAlias = dict[str, Any]
_FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """param: the path of the field of the body that is wrong, if known."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class Error:
    """The reply of every status from 400 on."""

    error: ErrorDetails


@dataclass(frozen=True, slots=True)
class Health:
    status: Literal["ok", "closing"]
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    max_model_len: int
    meta: dict[str, int]


@dataclass(frozen=True, slots=True)
class Models:
    object: Literal["list"]
    data: list[Model]


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """bytes: empty for special tokens, which add no text."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True, slots=True)
class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    content: list[Logprob]
    refusal: None


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """text_offset: characters of the choice's text before each token. With echo the prompt's first token has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@dataclass(frozen=True, slots=True)
class CalledFunction:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    type: Literal["function"]
    function: CalledFunction


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | None = None


@dataclass(frozen=True, slots=True)
class ChatChoice:
    index: int
    finish_reason: _FinishReason
    message: AnswerMessage
    logprobs: ChatLogprobs | None


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    index: int
    finish_reason: _FinishReason
    text: str
    logprobs: CompletionLogprobs | None


@dataclass(frozen=True, slots=True)
class Usage:
    """accepted_prediction_tokens: drafted tokens that the target accepted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """timings: llama.cpp's figures."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: dict[str, float]


@dataclass(frozen=True, slots=True)
class Completion:
    """timings: llama.cpp's figures."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: dict[str, float]


@dataclass(frozen=True, slots=True)
class Response:
    """output: a message, or calls of functions. timings: llama.cpp's figures.

    usage and timings: of a response that has ended, the last of a stream's events.
    """

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    timings: dict[str, float] | None = None


_OBJECT: _Object = {"type": "object"}
_BODIES = (ChatBody, CompletionBody, ResponseBody)
_REPLIES = (Error, Health, Models, Model, ChatCompletion, Completion, Response)
_GUARDS = {
    400: "The client went away, or the body is wrong.",
    401: "The API key is missing or wrong.",
    403: "The request is another web page's, which --allow-origin does not name.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    421: "The Host header names another server.",
    500: "The server failed.",
}
"""Statuses of every endpoint."""
_ANSWERS = {
    404: "There is no such model.",
    503: "Too many requests wait, or the server is closing: try again later.",
    507: "The memory budget has no room for the request.",
}
"""Statuses of the endpoints that answer with the model, besides `_GUARDS`."""


def description(models: list[str]) -> _Object:
    """Return the description. models: the names that `model` may have."""
    types: tuple[type, ...] = (*_BODIES, *_REPLIES)
    _, components = schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = _renamed(components)
    for body in _BODIES:
        schema = schemas[body.__name__]
        schema["properties"]["model"]["examples"] = models
        unsupported = UNSUPPORTED_RESPONSES if body is ResponseBody else UNSUPPORTED
        for name, nothing in unsupported.items():
            schema["properties"].setdefault(name, {"enum": [None, *nothing], "description": "Not offered."})
        for name in NO_EFFECT:
            schema["properties"][name] = {"description": "No effect on the answer."}
        schema["additionalProperties"] = False
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edgedecode",
            "version": edgedecode.__version__,
            "description": "OpenAI's API for one pack. Fields that it does not know or does not support are refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/health": {"get": _get("Whether requests are taken", _json(_ref(Health)), more={503: _ref(Health)})},
            "/metrics": {"get": _get("Counters for Prometheus", {"text/plain": {"schema": {"type": "string"}}})},
            "/props": {"get": _get("Names, modes, defaults and the engine", _json(_OBJECT))},
            "/memory": {"get": _get("The memory budget and what the process holds", _json(_OBJECT))},
            "/openapi.json": {"get": _get("This description", _json(_OBJECT))},
            "/v1/models": {"get": _get("The models", _json(_ref(Models)))},
            "/v1/models/{name}": {
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
                "get": _get("One model", _json(_ref(Model)), more={404: _ref(Error)}),
            },
            "/v1/chat/completions": {"post": _post("Answer a conversation", ChatBody, ChatCompletion)},
            "/v1/completions": {"post": _post("Continue a text", CompletionBody, Completion)},
            "/v1/responses": {"post": _post("Answer a conversation, in the form of responses", ResponseBody, Response)},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _get(summary: str, content: _Object, *, more: dict[int, _Object] | None = None) -> _Object:
    others = {
        str(status): {"description": "Otherwise.", "content": _json(each)} for status, each in (more or {}).items()
    }
    return {"summary": summary, "responses": _responses(content, _GUARDS) | others}


def _post(summary: str, body: type, reply: type) -> _Object:
    content = _json(_ref(reply)) | {"text/event-stream": {}}  # OpenAPI 3.1 has no schema for the events of a stream
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(_ref(body))},
        "responses": _responses(content, {**_GUARDS, **_ANSWERS}),
    }


def _responses(content: _Object, errors: dict[int, str]) -> _Object:
    refusals = {str(status): {"description": why, "content": _json(_ref(Error))} for status, why in errors.items()}
    return {"200": {"description": "The reply.", "content": content}, **refusals}


def _json(schema: _Object) -> _Object:
    return {"application/json": {"schema": schema}}


def _ref(kind: type) -> _Object:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _renamed(value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return the schemas without the leading underscore of types that are private to a module."""
    if isinstance(value, dict):
        return {name.lstrip("_"): _renamed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    return value.replace("/_", "/").removeprefix("_") if isinstance(value, str) else value
