"""`serve`: functions that a request offers, and the calls that answers make, with OpenAI's own client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode import Message, Pair
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.typed_json import typed

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

import jsonschema

from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.requests.tool_fields import ToolBody
from edgedecode.apps.serve.requests.tools import Call, Tools, call_text, read_tools
from tests.apps.test_serve import Running

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["Oslo", "Rome", "Athens"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]


def offered(tools: Any, choice: str | None, **options: Any) -> Tools | None:
    """Read tools as a body has them."""
    return read_tools(typed(tools, list[ToolBody], "tools"), choice, **options)


QUESTION, STORY = "Will it rain in Athens on Monday?", "Tell me a story about a duck."


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits())
        yield running
        running.close()


def create(server: Running, text: str, **fields: object) -> Any:
    messages = [{"role": "user", "content": text}]
    given: dict[str, Any] = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 80, **fields}
    return server.client.chat.completions.create(model="demo", **given)


def check_call(call: Any) -> None:
    assert call.type == "function"
    assert call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        jsonschema.validate(arguments, WEATHER)
    else:
        assert (call.function.name, arguments) == ("now", {})


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_begins_with_a_brace_is_a_call(server: Running, choice: str, *, stream: bool) -> None:
    reply = create(server, QUESTION, tool_choice=choice, stream=stream)
    if stream:
        parts = [part.choices[0] for part in reply]
        calls = [call for part in parts for call in part.delta.tool_calls or []]
        assert [part.finish_reason for part in parts][-1] == "tool_calls"
        assert {part.delta.content for part in parts} == {None}  # an empty one begins a text for AI SDK
        assert [call.index for call in calls] == [0]
    else:
        (found,) = reply.choices
        calls = found.message.tool_calls
        assert (found.finish_reason, found.message.content) == ("tool_calls", None)
    (call,) = calls
    check_call(call)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_a_call_is_text(server: Running, *, stream: bool) -> None:
    reply = create(server, STORY, stream=stream)
    if stream:
        parts = [part.choices[0] for part in reply]
        text = "".join(part.delta.content or "" for part in parts)
        assert not any(part.delta.tool_calls for part in parts)
        assert len(parts) > 5, "text is streamed as it is written"
    else:
        text = reply.choices[0].message.content
        assert reply.choices[0].message.tool_calls is None
    assert len(text) > 20
    assert not text.startswith("{")


def test_a_named_function_is_called_whatever_was_asked(server: Running) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    for text in (STORY, QUESTION):
        (call,) = create(server, text, tool_choice=choice).choices[0].message.tool_calls
        assert call.function.name == "weather"
        check_call(call)


def test_sampled_calls_follow_the_schema_too(server: Running) -> None:
    reply = create(server, QUESTION, tool_choice="required", temperature=1.5, n=4, seed=5)
    calls = [choice.message.tool_calls[0] for choice in reply.choices if choice.finish_reason == "tool_calls"]
    assert calls
    for call in calls:
        check_call(call)


def test_no_function_is_called_if_none_may_be(server: Running) -> None:
    reply = create(server, QUESTION, tool_choice="none")
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage.prompt_tokens < create(server, QUESTION).usage.prompt_tokens, "nor is it described"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_call_that_is_cut_off_before_its_arguments_is_no_text(server: Running, *, stream: bool, named: bool) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}} if named else "required"
    for limit in (1, 2, 3):
        reply = create(server, QUESTION, tool_choice=choice, max_tokens=limit, stream=stream)
        parts = [part.choices[0] for part in reply] if stream else reply.choices
        assert parts[-1].finish_reason == "length"
        said = [part.delta if stream else part.message for part in parts]
        assert not any(each.content for each in said)
        calls = [(call.function.name, call.function.arguments) for each in said for call in each.tool_calls or []]
        assert calls == ([("weather", "")] if named else [])


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_cut_off_within_a_call_has_what_there_is_of_it(server: Running, *, stream: bool) -> None:
    tools: Any = [{"type": "function", **each["function"]} for each in TOOLS]
    for choice, limit in (("required", 2), ({"type": "function", "name": "weather"}, 2), ("required", 14)):
        given: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_output_tokens": limit, "temperature": 0}
        reply = server.client.responses.create(model="demo", input=QUESTION, stream=stream, **given)
        if stream:
            events = [*reply]
            deltas = "".join(each.delta for each in events if each.type.endswith(".delta"))
            reply = events[-1].response
            assert deltas == getattr(reply.output[0], "arguments", "")
        (item,) = reply.output
        assert (reply.status, item.status, reply.output_text) == ("incomplete", "incomplete", "")
        begun = '{"city": "' if limit == 14 else ""
        assert item.type == "message" or item.arguments.startswith(begun)
        assert (item.type == "message") == (choice == "required" and limit == 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_within_a_call_leaves_its_beginning(server: Running, *, stream: bool) -> None:
    reply = create(server, QUESTION, tool_choice="required", stop=["Athens"], stream=stream)
    parts = [part.choices[0] for part in reply] if stream else reply.choices
    said = [part.delta if stream else part.message for part in parts]
    (call,) = (call for each in said for call in each.tool_calls or [])
    assert (parts[-1].finish_reason, call.function.arguments) == ("stop", '{"city": "')
    assert not any(each.content for each in said)


def test_a_form_that_begins_as_a_call_does_is_no_call() -> None:
    form: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
    tools = offered([{"type": "function", "function": {"name": "weather"}}], None, form=form)
    assert tools is not None
    for text in ("{", '{"name": "', '{"name": "w', '{"name": "weather"'):
        assert not tools.is_call(text)
        assert tools.calls(text, ended=True) == ()
    (call,) = tools.calls('{"name": "weather", "arguments": {', ended=True)
    assert (call.name, call.arguments) == ("weather", "{")


def test_an_undecided_call_after_others_is_left_out() -> None:
    tools = offered(TOOLS, "required", several=True)
    assert tools is not None
    whole = '{"name": "now", "arguments": {}}'
    assert tools.calls(f'{whole}\n{{"na', ended=True) == tools.calls(whole)


def test_a_conversation_goes_on_with_the_functions_result(server: Running) -> None:
    (call,) = create(server, QUESTION, tool_choice="required").choices[0].message.tool_calls
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": '{"rain": true}'},
    ]
    reply = create(server, "", messages=messages, tools=TOOLS)
    assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert reply.usage.prompt_tokens_details.cached_tokens > 0.8 * (reply.usage.prompt_tokens - 20)


def test_a_session_answers_a_tools_message(server: Running) -> None:
    pair: Pair = server.pair
    with pair.session() as session:
        session.generate(QUESTION, max_tokens=8)
        session.generate(Message("tool", "It rains."), max_tokens=8)
        assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_call_is_read_back_as_it_was_written() -> None:
    tools = offered(TOOLS, None)
    assert isinstance(tools, Tools)
    for text in (
        '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}',
        '{"name": "now", "arguments": {}}',
    ):
        (call,) = tools.calls(text)
        assert call_text(call) == text
    for spelled in ('{"name":"now","arguments":{"a":1}}', '{\n  "name": "now",\n  "arguments": {\n    "a": 1\n  }\n}'):
        (call,) = tools.calls(spelled)
        assert (call, call_text(call)) == (Call("now", '{"a": 1}'), '{"name": "now", "arguments": {"a": 1}}')
    for other in ("", "{", '{"name": 3}', "now()", '{"name":"now","arguments":{}', "[1]"):
        assert tools.calls(other) == ()


def test_the_system_message_describes_the_functions() -> None:
    tools = offered(TOOLS, "required")
    assert tools is not None
    alone = tools.introduced([Message("user", "x")])
    joined = tools.introduced([Message("system", "Be kind."), Message("user", "x")])
    assert [message.role for message in alone] == [message.role for message in joined] == ["system", "user"]
    assert joined[0].content.startswith("Be kind.\n\nCall one of these functions.")
    assert '"The weather."' in alone[0].content


FUNCTION = {"name": "f"}


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ("x", None, "tools"),
        ([{"function": {"name": "f"}}], None, "tools[0].type is missing"),
        ([{"type": "web_search"}], "required", "there are no tools"),
        ([{"type": "function"}], None, "is no function"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "use up to 128 letters"),
        ([{"type": "function", "function": {"name": "<|im_end|>"}}], None, "use up to 128 letters"),
        ([{"type": "function", "function": FUNCTION}] * 2, None, "two functions of one name"),
        ([{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)], None, "the most is 128"),
        ([{"type": "function", "function": FUNCTION}], "sometimes", "must be none, auto, required"),
        ([{"type": "function", "function": FUNCTION}], {"type": "function", "function": {"name": "g"}}, "names no"),
        ([{"type": "function", "function": FUNCTION}], {"type": "custom", "function": FUNCTION}, "names no"),
        ([], "required", "there are no tools"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}, "strict": True}}],
            None,
            "tools[0].function.parameters.not: not cannot be followed",
        ),
    ],
)
def test_functions_that_cannot_be_offered_are_refused(
    tools: object, choice: object, said: str, server: Running
) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
    status, value = server.post(body)
    assert (status, said in value["error"]["message"]) == (400, True), value


def test_other_uses_of_functions_are_refused(server: Running) -> None:
    base = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    for more, said in (
        ({"guided_regex": "a+"}, "go with a JSON Schema only"),
        ({"model": "demo@switch"}, "leave out switching"),
    ):
        status, value = server.post({**base, **more})
        assert (status, said in value["error"]["message"]) == (400, True), value
    status, value = server.post({"model": "demo", "prompt": "hi", "tools": TOOLS}, "/v1/completions")
    assert (status, "belong to chat completions" in value["error"]["message"]) == (400, True)
