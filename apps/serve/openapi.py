"""The description of the server's endpoints in OpenAPI 3.1, from the types of bodies and replies."""

from typing import Any, TypeAlias

from msgspec.json import schema_components

import edgedecode

from .guards import Error
from .offered import Health, Model, ModelList
from .replies import ChatCompletion, Completion
from .requests.asked import ChatBody, CompletionBody
from .requests.fields import NO_EFFECT, UNSUPPORTED
from .requests.responses import UNSUPPORTED_RESPONSES, ResponseBody
from .responses import Response

_Object: TypeAlias = dict[str, Any]

_OBJECT: _Object = {"type": "object"}
_BODIES = (ChatBody, CompletionBody, ResponseBody)
_REPLIES = (Error, Health, ModelList, Model, ChatCompletion, Completion, Response)
_GUARDS = {
    400: "The client went away, or the body is wrong.",
    401: "The API key is missing or wrong.",
    403: "The request comes from another origin, which --allow-origin does not name.",
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
            "/v1/models": {"get": _get("The models", _json(_ref(ModelList)))},
            "/v1/models/{name}": {
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
                "get": _get("One model", _json(_ref(Model)), more={404: _ref(Error)}),
            },
            "/v1/chat/completions": {"post": _post("Answer a conversation", ChatBody, ChatCompletion)},
            "/v1/completions": {"post": _post("Continue a text", CompletionBody, Completion)},
            "/v1/responses": {"post": _post("Answer a conversation, in the form of responses", ResponseBody, Response)},
        },
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
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
