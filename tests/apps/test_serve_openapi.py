"""`serve`: /openapi.json describes what the server does; requests made from it, good and bad, get described replies."""

import json
from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, FLAT, PATHS, RESPONSES, TOOLS, Running, asked, body

# isort: split
from hypothesis import HealthCheck, Phase, given, settings

from edgedecode import SessionOptions

pytest.importorskip("schemathesis", reason="the test extra is not installed")

import schemathesis
from jsonschema import Draft202012Validator, ValidationError
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.routing import Route

from edgedecode.apps.serve.application import create_app
from edgedecode.apps.serve.errors.forms import AnthropicError, Error, LlamaError, error_kind
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.llama_server.endpoints import ALIASES
from edgedecode.apps.serve.models.one import OneModel
from edgedecode.apps.serve.openapi import description

READING = (
    *("/health", "/metrics", "/props", "/memory", "/openapi.json", "/v1/models", "/v1/models/{name}"),
    *("/api/version", "/api/tags", "/api/ps", "/slots", "/models", "/models/{name}", "/v1/health"),
)
EXAMPLES = 24
MESSAGES = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
OPTIONS = {"options": {"num_predict": 3}}
GOOD: dict[str, dict[str, Any]] = {
    **{path: {name: value for name, value in body(path, "Hi", 3).items() if name != "temperature"} for path in PATHS},
    "/v1/messages": MESSAGES | {"max_tokens": 3},
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": MESSAGES | OPTIONS,
    "/api/generate": {"model": "demo", "prompt": "Hi", **OPTIONS},
    "/api/show": {"model": "demo"},
    "/api/pull": {"model": "demo"},
    "/completion": {"prompt": "Hi", "n_predict": 3},
    "/completions": {"prompt": "Hi", "n_predict": 3},
    "/infill": {"input_prefix": "a", "n_predict": 3},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": MESSAGES["messages"]},
    "/chat/completions": MESSAGES | {"max_tokens": 3},
    "/responses": {"input": "Hi", "max_output_tokens": 3},
}
"""What makes most generated bodies acceptable, and their answers short."""
OTHERS = ["/v1/verify", "/v1/embeddings", "/embeddings", "/api/embed", "/api/embeddings", "/api/delete"]
"""What this server refuses: see the tests of embeddings, and of the library."""
DIFFICULT = {"tools", "tool_choice", "response_format", "text", "top_logprobs", "include", "return_rounds"}
"""Fields that exclude others, need others, or whose content is seldom valid."""


SERVER = {"options": SessionOptions(context=256)}


@pytest.fixture(scope="module")
def api(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


def check(case: Any, statuses: Counter[int]) -> None:
    """Send a request, and compare status, type and content of the reply with the description."""
    reply = case.call(timeout=60)
    statuses[reply.status_code] += 1
    assert reply.status_code < 500, reply.text
    # Not every valid body is accepted: a schema cannot say that a model exists, or which fields exclude each other.
    case.validate_response(reply, excluded_checks=[positive_data_acceptance])
    if reply.status_code >= 400:
        error, kind = reply.json()["error"], error_kind(case.path)
        fields: dict[Any, set[str]] = {
            Error: {"message", "type", "param", "code"},
            AnthropicError: {"message", "type"},
            LlamaError: {"message", "type", "code"},
        }
        assert error if kind not in fields else {*error} - {"details"} == fields[kind]
        message = error["message"] if kind in fields else error
        assert message
        assert "\n" not in message


CHECKS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", [path for path in GOOD if path not in ALIASES])
def test_generated_requests_get_described_replies(api: Any, server: Running, path: str, mode: Any) -> None:
    statuses: Counter[int] = Counter()
    cases, repairs = api[path]["POST"].as_strategy(generation_mode=mode), cycle(range(3))

    @CHECKS
    @given(cases)
    def each(case: Any) -> None:
        repair = next(repairs)
        if repair and mode is GenerationMode.POSITIVE:  # else few would get past the check of the model's name
            case.body = {**case.body, "model": "demo", **GOOD[path]}
        if repair == 2 and mode is GenerationMode.POSITIVE:
            case.body = {name: value for name, value in case.body.items() if name not in DIFFICULT}
        check(case, statuses)

    each()
    good = mode is GenerationMode.POSITIVE and path != "/infill"  # this model has no tokens for that
    assert statuses[200] > EXAMPLES // 10 if good else {*statuses} == {400}, statuses
    server.answer(asked(max_tokens=2))


@pytest.mark.parametrize("path", READING)
def test_generated_reads_get_described_replies(api: Any, path: str) -> None:
    statuses: Counter[int] = Counter()

    @settings(CHECKS, max_examples=5)
    @given(api[path]["GET"].as_strategy())
    def each(case: Any) -> None:
        check(case, statuses)

    each()
    assert {*statuses} == {404 if "{" in path else 200}


INCLUDE = ["message.output_text.logprobs"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 3, "n": 2}),
        (CHAT, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}),
        (COMPLETIONS, {"logprobs": 2, "n": 2}),
        (RESPONSES, {"include": INCLUDE, "top_logprobs": 2}),
        (RESPONSES, {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 60}),
    ],
)
def test_replies_are_as_described(api: Any, path: str, body: dict[str, object]) -> None:
    case = api[path]["POST"].Case(body={"model": "demo", **GOOD[path], **body}, media_type="application/json")
    reply = case.call(timeout=60)
    assert reply.status_code == 200, reply.text
    case.validate_response(reply)
    changed = reply.json() | {"id": 7}
    schema = description(["demo"])
    (found,) = schema["paths"][path]["post"]["responses"]["200"]["content"]["application/json"].values()
    with pytest.raises(ValidationError):
        Draft202012Validator({**found, "components": schema["components"]}).validate(changed)


def test_every_endpoint_is_described(server: Running) -> None:
    described = description(["demo"])
    app: Any = create_app(OneModel(server.service), Limits(), verifies=True)
    routes = [each for each in app._app.routes if isinstance(each, Route) and each.path != "/"]
    found = {route.path: route.methods for route in routes}
    assert {path.replace(":path", "") for path in found} == {*described["paths"]} == {*GOOD, *READING, *OTHERS}
    for path, methods in found.items():
        assert methods is not None
        each = described["paths"][path.replace(":path", "")]
        assert {name.upper() for name in each} & {"GET", "POST", "DELETE"} == methods - {"HEAD"}
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert '"pattern": "' not in json.dumps(described), "msgspec 0.22 frees it twice: the process dies at its end"
