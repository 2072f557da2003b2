"""`serve`: every field of a request is followed or refused, and answers that fail or outgrow the context say so."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import edgedecode
from edgedecode import CapabilityError, InputError, SamplingOptions, SessionOptions
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.structured.grammar import Grammar, GrammarKind
from edgedecode.structured.schema_check import checked_schema

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

from edgedecode.apps.serve import running as running_module
from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.openapi import description
from edgedecode.apps.serve.requests.asked import read_chat
from edgedecode.apps.serve.rounds import Piece
from tests.apps.test_serve import STORY, Running, asked

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BASE: dict[str, dict[str, Any]] = {
    CHAT: asked(max_tokens=2),
    COMPLETIONS: {"model": "demo", "prompt": "Once", "max_tokens": 2},
    RESPONSES: {"model": "demo", "input": STORY, "max_output_tokens": 2},
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
    "required": ["city", "day"],
}
"""The function of docs/serve.md, whose schema does not say that it is closed."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), parallel=2, options=SessionOptions(context=256))
        yield running
        running.close()


def tool(parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": parameters}}


def form(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@pytest.mark.parametrize("levels", [150, 490, 900, 975])
@pytest.mark.parametrize("field", ["tools", "metadata", "response_format"])
def test_a_deeply_nested_body_is_refused_or_its_schema_is_left_out(field: str, levels: int, server: Running) -> None:
    value = {"tools": [tool("X")], "metadata": "X", "response_format": form("X")}[field]
    body = json.dumps(asked(max_tokens=2, **{field: value})).replace('"X"', '{"a":' * levels + "1" + "}" * levels)
    status, reply = server.post(body.encode())
    if levels < 200 and field == "tools":  # as text it is too long for this model
        assert reply["error"]["code"] == "context_length_exceeded"
    elif levels < 200:
        assert status == 200
        assert field == "metadata" or "nested" in server.note
    else:
        assert (status, "nested" in reply["error"]["message"]) == (400, True), reply


@pytest.mark.parametrize("schema", [{"enum": ["\ud800"]}, {"properties": {"\udfff": {}}}])
def test_half_a_surrogate_pair_is_refused(schema: dict[str, Any], server: Running) -> None:
    for fields in ({"response_format": form(schema)}, {"tools": [tool(schema)]}, {"metadata": schema}):
        status, reply = server.post(asked(**fields))
        assert (status, "surrogate" in reply["error"]["message"]) == (400, True), reply
    assert server.post(BASE[RESPONSES] | {"metadata": schema}, RESPONSES)[0] == 400, "the reply would repeat it"
    with pytest.raises(InputError, match="surrogate"):
        checked_schema(json.dumps(schema))
    for kind in (GrammarKind.REGEX, GrammarKind.LARK):
        with pytest.raises(InputError, match="surrogate"):
            Grammar(kind, "a\ud800")


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (CHAT, {"temprature": 1}, "did you mean temperature?"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities is not supported"),
        (CHAT, {"web_search_options": {}}, "web_search_options is not supported"),
        (CHAT, {"verbosity": "loud"}, "verbosity must be one of low, medium, high"),
        (CHAT, {"samplers": "kt"}, "samplers is not supported"),
        (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort must be one of"),
        (CHAT, {"min_tokens": 5}, "min_tokens is not supported"),
        (CHAT, {"length_penalty": True}, "length_penalty is not supported"),
        (CHAT, {"guided_whitespace_pattern": " "}, "guided_whitespace_pattern is not supported"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options needs stream"),
        (CHAT, {"max_completion_tokens": 3}, "max_tokens and max_completion_tokens differ"),
        (CHAT, {"truncation": "middle"}, "truncation must be one of auto, disabled"),
        (CHAT, {"tools": [tool(WEATHER)], "tool_choice": {"type": "function", "name": "wether"}}, "names no function"),
        (CHAT, {"tools": [tool(WEATHER)], "tool_choice": {"type": "allowed_tools"}}, "names no function"),
        (COMPLETIONS, {"suffix": "the end"}, "suffix is not supported"),
        (COMPLETIONS, {"messages": []}, "unknown field 'messages'"),
        (RESPONSES, {"n": 2}, "n is not supported"),
        (RESPONSES, {"max_tokens": 3}, "max_tokens is not supported"),
        (RESPONSES, {"response_format": form({})}, "response_format is not supported"),
        (RESPONSES, {"truncation": "middle"}, "truncation must be"),
        (RESPONSES, {"text": {"verbosity": "loud"}}, "text.verbosity must be"),
        (RESPONSES, {"text": {"format": "json"}}, "text.format is 'json'"),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type must be"),
        (RESPONSES, {"tools": [{"type": "function", "name": 7}]}, "tools[0].name"),
        (RESPONSES, {"max_output_tokns": 3}, "did you mean max_output_tokens?"),
    ],
)
def test_what_is_not_offered_is_refused(path: str, fields: dict[str, Any], said: str, server: Running) -> None:
    status, reply = server.post(BASE[path] | fields, path)
    assert (status, said in reply["error"]["message"]) == (400, True), reply


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_fields_without_effect_are_accepted(path: str, server: Running) -> None:
    fields = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k"}
    more = {"frequency_penalty": 0, "logit_bias": None, "safety_identifier": "s"}
    assert server.post(BASE[path] | fields | more, path)[0] == 200


def test_an_earlier_function_call_is_refused(server: Running) -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "w", "arguments": "{}"}}
    status, reply = server.post(asked(messages=[call, {"role": "user", "content": "x"}]))
    assert (status, "messages[0].function_call" in reply["error"]["message"]) == (400, True)


def test_a_top_p_of_zero_is_the_likeliest_token(server: Running) -> None:
    sampled = [server.post(asked(max_tokens=8, temperature=2, top_p=0))[1] for _ in range(2)]
    greedy = server.post(asked(max_tokens=8))[1]
    assert [each["choices"][0]["message"] for each in sampled] == [greedy["choices"][0]["message"]] * 2


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_n_sigma": 1e-4}])
def test_responses_pass_llama_cpps_samplers_on(narrow: dict[str, float], server: Running) -> None:
    fields = {"temperature": 2, "max_output_tokens": 8, **narrow}
    found = [server.post(BASE[RESPONSES] | fields, RESPONSES)[1] for _ in range(2)]
    texts = {each["output"][0]["content"][0]["text"] for each in found}
    assert texts == {server.post(asked(max_tokens=8))[1]["choices"][0]["message"]["content"]}


LONG = [
    message
    for number in range(12)
    for message in (
        {"role": "user", "content": f"Message {number}: the ducks swim in the lake and the sun is bright today."},
        {"role": "assistant", "content": "Yes, they do swim in the lake."},
    )
] + [{"role": "user", "content": "Hello"}]


def test_no_turn_is_dropped_unless_the_request_says_so(server: Running) -> None:
    for path, fields in ((CHAT, {"messages": LONG}), (RESPONSES, {"input": LONG})):
        for more in ({}, {"truncation": "disabled"}):
            status, reply = server.post(BASE[path] | fields | more, path)
            assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
        status, reply = server.post(BASE[path] | fields | {"truncation": "auto"}, path)
        assert status == 200
        assert reply["timings"]["dropped_turns"] > 0
    assert "dropped_turns" not in server.post(asked(max_tokens=2))[1]["timings"]


def test_an_answer_ends_where_the_context_does(server: Running) -> None:
    reply = server.post(
        asked(
            messages=LONG[:4] + LONG[-1:], max_tokens=500, response_format=form({"type": "string", "minLength": 3000})
        )
    )[1]
    assert "choices" in reply, reply
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 256


@pytest.mark.parametrize("more", [{}, {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:weather"}])
def test_the_documented_function_is_called(more: dict[str, Any], server: Running) -> None:
    messages = [{"role": "user", "content": "Will it rain in Athens on Monday?"}]
    body = {"model": "demo", "tool_choice": "required", "messages": messages, "tools": [tool(WEATHER | more)]}
    status, reply = server.post(body)
    assert (status, reply["choices"][0]["finish_reason"]) == (200, "tool_calls"), reply
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Athens", "day": "Monday"}


def test_unique_items_false_means_nothing() -> None:
    assert checked_schema('{"type": "array", "uniqueItems": false}') == {"type": "array"}
    assert read_chat(json.dumps(asked()).encode(), SamplingOptions()).name == "demo"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every answer fail after its second piece."""
    pieces = running_module.Running.pieces

    async def some(self: running_module.Running) -> AsyncIterator[Piece]:
        number = 0
        async for piece in pieces(self):
            yield piece
            number += 1
            if number == 2:
                raise CapabilityError("the matcher failed")

    monkeypatch.setattr(running_module.Running, "pieces", some)


@pytest.mark.usefixtures("failing")
def test_a_response_that_fails_in_the_middle_ends_as_failed(server: Running) -> None:
    with server.client.responses.stream(model="demo", input=STORY, max_output_tokens=30) as stream:
        events = list(stream)
    raw = list(server.client.responses.create(model="demo", input=STORY, max_output_tokens=30, stream=True))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert events[-1].type == raw[-1].type == "response.failed"
    assert raw[-1].response.status == "failed"
    assert raw[-1].response.error is not None
    assert (raw[-1].response.error.code, raw[-1].response.error.message) == ("server_error", "the matcher failed")
    described = {"$ref": "#/components/schemas/Response", "components": description(["demo"])["components"]}
    whole = [event.response.to_dict() for event in raw if hasattr(event, "response")]
    assert [each["status"] for each in whole] == ["in_progress", "in_progress", "failed"]
    for each in whole:
        Draft202012Validator(described).validate(each)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_an_answer_that_fails_is_the_servers_error(path: str, server: Running) -> None:
    most = {"max_tokens": 30} if path == CHAT else {"max_output_tokens": 30}
    status, reply = server.post(BASE[path] | most, path)
    assert (status, reply["error"]["type"]) == (500, "server_error"), reply


def test_a_response_repeats_what_was_asked(server: Running) -> None:
    flat = {"type": "function", "name": "weather", "parameters": WEATHER}
    fields = {"tools": [flat], "tool_choice": "none", "metadata": {"a": "b"}, "instructions": "Be brief."}
    found = server.client.responses.create(**BASE[RESPONSES], **fields, parallel_tool_calls=True)
    assert (found.tools[0].to_dict()["name"], found.tool_choice, found.metadata) == ("weather", "none", {"a": "b"})
    assert (found.instructions, found.parallel_tool_calls) == ("Be brief.", True)
