"""`serve`: answers of several calls (`parallel_tool_calls`), whole and streamed, and their round trip."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.requests.tools import Call, call_text
from tests.apps.test_serve import Running
from tests.apps.test_serve_tools import QUESTION, TOOLS, check_call, offered

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
HOT = SamplingOptions(temperature=100.0)
"""The bundled model makes one call and stops; at this temperature it makes any number."""
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALLS = [Call("now", "{}"), Call("weather", '{"city": "Oslo", "days": 3}')]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), options=SessionOptions(sampling=HOT))
        yield running
        running.close()


def create(server: Running, **fields: Any) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    given = {"messages": messages, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400, "seed": 3, **fields}
    return server.client.chat.completions.create(model="demo", **given)


def test_an_answer_makes_several_calls_if_it_may(server: Running) -> None:
    counts = []
    for choice in create(server, parallel_tool_calls=True, n=8).choices:
        assert choice.finish_reason == "tool_calls"
        for call in choice.message.tool_calls:
            check_call(call)
        counts.append(len(choice.message.tool_calls))
        assert len({call.id for call in choice.message.tool_calls}) == counts[-1]
    assert max(counts) > 1
    assert max(counts) <= 8


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": False}, {"parallel_tool_calls": None}])
def test_an_answer_makes_one_call_unless_asked(server: Running, fields: dict[str, Any]) -> None:
    for choice in create(server, n=8, **fields).choices:
        assert len(choice.message.tool_calls) == 1


def test_streamed_calls_have_their_indices(server: Running) -> None:
    whole = create(server, parallel_tool_calls=True, n=8)
    found: list[list[Any]] = [[] for _ in range(8)]
    for part in create(server, parallel_tool_calls=True, n=8, stream=True):
        (choice,) = part.choices
        assert not choice.delta.content
        for call in choice.delta.tool_calls or []:
            assert call.index == len(found[choice.index])
            found[choice.index].append(call)
    for calls, choice in zip(found, whole.choices, strict=True):
        assert [call.function for call in calls] == [
            type(calls[0].function)(**call.function.model_dump()) for call in choice.message.tool_calls
        ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_an_item_for_each_call(server: Running, *, stream: bool) -> None:
    counts = []
    for seed in range(6):
        reply: Any = server.client.responses.create(
            model="demo",
            input=QUESTION,
            tools=FLAT,  # type: ignore[arg-type]
            tool_choice="required",
            parallel_tool_calls=True,
            max_output_tokens=400,
            stream=stream,
            extra_body={"seed": seed},
        )
        if stream:
            events = list(reply)
            done = [event for event in events if event.type == "response.output_item.done"]
            assert [event.output_index for event in done] == list(range(len(done)))
            reply = events[-1].response
            assert [event.item.call_id for event in done] == [item.call_id for item in reply.output]
        assert reply.parallel_tool_calls
        assert all(item.type == "function_call" and json.loads(item.arguments) is not None for item in reply.output)
        counts.append(len(reply.output))
    assert max(counts) > 1


def test_several_calls_and_their_results_are_read_back_as_they_were_written(server: Running) -> None:
    tools = offered(TOOLS, None, several=True)
    assert tools is not None
    text = "\n".join(map(call_text, CALLS))
    assert list(tools.calls(text)) == CALLS
    assert list(tools.calls(f"{text}\n")) == CALLS
    assert tools.calls(text[:-1]) == tools.calls(f"{text}\nHello") == ()
    called = [{"id": f"c{number}", **_function(call)} for number, call in enumerate(CALLS)]
    chat = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": "c0", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    items = [
        {"role": "user", "content": QUESTION},
        *(
            {"type": "function_call", "call_id": f"c{number}", "name": call.name, "arguments": call.arguments}
            for number, call in enumerate(CALLS)
        ),
        {"type": "function_call_output", "call_id": "c0", "output": "noon"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    written = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": text},
        {"role": "tool", "content": "noon"},
        {"role": "tool", "content": "rain"},
    ]
    replies = [
        create(server, messages=chat, parallel_tool_calls=True),
        create(server, messages=written, parallel_tool_calls=True),
    ]
    counts = {reply.usage.prompt_tokens for reply in replies}
    status, value = server.post(
        {"model": "demo", "input": items, "tools": FLAT, "tool_choice": "required", "parallel_tool_calls": True},
        "/v1/responses",
    )
    assert status == 200, value
    assert {value["usage"]["input_tokens"]} == counts
    assert "one below the other" in tools.introduced(())[0].content


def test_errors_name_the_item_of_the_input(server: Running) -> None:
    bad = {"type": "function_call", "name": 7, "arguments": "{}"}
    good = {"type": "function_call", "name": "now", "arguments": "{}"}
    user = {"role": "user", "content": "Hi"}
    for items, name in (([user, bad, user], "input[1]"), ([good, good, user, bad, user], "input[3]")):
        status, value = server.post({"model": "demo", "input": items, "instructions": "Be kind."}, "/v1/responses")
        assert (status, value["error"]["param"]) == (400, f"{name}.tool_calls[0].function.name"), value


def _function(call: Call) -> dict[str, Any]:
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
