"""`serve`: /v1/responses with OpenAI's own client: whole, streamed, structured, with functions, and bad requests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.apps.serve.application import Limits
from tests.apps.test_serve import STORY, Running, lone

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Athens"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION = "Will it rain in Athens on Monday?"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), parallel=2)
        yield running
        running.close()


def create(server: Running, **fields: object) -> Any:
    given: dict[str, Any] = {"model": "demo", "input": STORY, "temperature": 0, **fields}
    return server.client.responses.create(**given)


def test_a_response_is_the_answer_of_a_session(server: Running) -> None:
    found = create(server, max_output_tokens=40)
    assert found.output_text == lone(server.pair, STORY, seed=None, temperature=0.0, most=40)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (18, 40, 58)
    whole = create(server)
    assert (whole.status, whole.incomplete_details, whole.error) == ("completed", None, None)
    assert found.id != whole.id


@pytest.mark.parametrize("most", [7, None])
def test_streamed_events_add_up_to_the_response(server: Running, most: int | None) -> None:
    events = list(create(server, stream=True, max_output_tokens=most))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed" if most is None else "response.incomplete",
    ]
    assert {*kinds[4:-4]} == {"response.output_text.delta"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert text == events[-4].text == final.output_text == create(server, max_output_tokens=most).output_text
    assert len({event.item_id for event in events[3:-2]} | {final.output[0].id}) == 1


def test_instructions_and_earlier_messages_are_read(server: Running) -> None:
    items = [
        {"role": "user", "content": "My name is Uma."},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello, Uma."}]},
        {"role": "user", "content": [{"type": "input_text", "text": STORY}]},
    ]
    found = create(server, input=items, instructions="Be brief.", max_output_tokens=20)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "My name is Uma."},
        {"role": "assistant", "content": "Hello, Uma."},
        {"role": "user", "content": STORY},
    ]
    chat = server.client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=20)
    assert found.output_text == chat.choices[0].message.content


def test_text_follows_a_schema(server: Running) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    form = {"format": {"type": "json_schema", "name": "person", "schema": schema}}
    found = create(server, input="Extract age as JSON.\nUma is 61.", text=form, max_output_tokens=60)
    assert found.status == "completed"
    assert json.loads(found.output_text)["age"] <= 99


@pytest.mark.parametrize("name", ["now", "fs.read", "github/list:all"])
def test_only_allowed_functions_are_called(server: Running, name: str) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    other = {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
    reply = create(server, input=QUESTION, tools=[TOOL, other], tool_choice=choice)
    assert [(each.name, json.loads(each.arguments)) for each in reply.output] == [(name, {})]


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_is_called_and_its_result_answered(server: Running, *, stream: bool) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    choice = {"type": "function", "name": "weather"}
    reply = create(server, input=QUESTION, tools=[TOOL], tool_choice=choice, stream=stream)
    if stream:
        events = list(reply)
        reply = events[-1].response
        added, done = (event for event in events if event.type.startswith("response.output_item"))
        assert (added.item.status, done.item.status) == ("in_progress", "completed")
        (arguments,) = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert arguments.arguments == reply.output[0].arguments
        assert not any(event.type == "response.output_text.delta" for event in events)
    (call,) = reply.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Athens")
    items = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    assert create(server, input=items, tools=[TOOL], max_output_tokens=16).usage.output_tokens > 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input is missing"),
        ({"input": None}, "input"),
        ({"input": 7}, "input is '7'"),
        ({"input": [7]}, "input[0] is '7'"),
        ({"input": [{"type": "compaction"}]}, "input[0] is of type 'compaction'"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0] refers to the item 'msg_1'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "this server reads text only"),
        ({"input": "x", "previous_response_id": "resp_1"}, "does not have 'resp_1'"),
        ({"input": "x", "tools": [{"name": "weather"}]}, "tools[0].type is missing"),
        ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"}, "there are no tools"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice names no function"),
        ({"input": "x", "tools": [{"type": "custom", "name": "a"}, TOOL | {"name": "?"}]}, "tools[1] has the name"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing"),
    ],
)
def test_a_bad_request_is_refused(body: dict[str, object], said: str, server: Running) -> None:
    status, value = server.post({"model": "demo", **body}, "/v1/responses")
    assert (status, said in value["error"]["message"]) == (400, True), value
    assert server.post({"model": "demo:other", "input": "x"}, "/v1/responses")[0] == 404
