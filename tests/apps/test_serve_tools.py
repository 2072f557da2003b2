"""`serve`: functions that a request offers, and the calls that answers make, with OpenAI's own client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.serving import FLAT, QUESTION, RESPONSES, STORY, TOOLS, WEATHER, Running, heard, offered, streamed

# isort: split
import jsonschema

from edgedecode import Message, SamplingOptions, SessionOptions
from edgedecode.apps.serve.requests.tools import Call, call_text

CALL, OTHER = '{"name": "now", "arguments": {}}', '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}'
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def hot(server: Running) -> Iterator[Running]:
    """The bundled model makes one call and stops; at this temperature it makes any number."""
    with Running(server.pair, options=SessionOptions(sampling=SamplingOptions(temperature=100.0))) as running:
        yield running


def create(server: Running, text: str, **fields: object) -> Any:
    given: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **fields}
    return server.client.chat.completions.create(model="demo", **{"temperature": 0, "max_tokens": 80} | given)


def create_hot(server: Running, **fields: object) -> Any:
    given: dict[str, Any] = {"tool_choice": "required", "max_tokens": 400, "seed": 3, "temperature": None, **fields}
    return create(server, QUESTION, **given)


def check_calls(calls: list[Any]) -> None:
    """Check calls of `TOOLS`, whose ids differ."""
    for call in calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            jsonschema.validate(arguments, WEATHER)
        else:
            assert (call.function.name, arguments) == ("now", {})
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("choice", ["auto", "required"])
@streamed
def test_an_answer_that_begins_with_a_brace_is_a_call(server: Running, choice: str, *, stream: bool) -> None:
    reply = create(server, QUESTION, tool_choice=choice, stream=stream)
    parts = [*reply] if stream else []
    found = heard(parts or reply)
    assert (found.text, found.reason, len(found.calls)) == ("", "tool_calls", 1)
    assert not parts or found.calls[0].index == 0
    assert {part.choices[0].delta.content for part in parts} <= {None}  # an empty one begins a text for AI SDK
    check_calls(found.calls)


@streamed
def test_an_answer_without_a_call_is_text(server: Running, *, stream: bool) -> None:
    found = heard(create(server, STORY, stream=stream))
    assert not found.calls
    assert len(found.text) > 20
    assert not found.text.startswith("{")
    assert not stream or found.parts > 5, "text is streamed as it is written"


def test_a_named_function_is_called_whatever_was_asked(server: Running) -> None:
    for text in (STORY, QUESTION):
        found = heard(create(server, text, tool_choice=NAMED))
        assert [name for name, _ in found.arguments] == ["weather"]
        check_calls(found.calls)


def test_no_function_is_called_if_none_may_be(server: Running) -> None:
    reply = create(server, QUESTION, tool_choice="none")
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage.prompt_tokens < create(server, QUESTION).usage.prompt_tokens, "nor is it described"


@streamed
@pytest.mark.parametrize("named", [False, True])
def test_a_call_that_is_cut_off_is_a_call_as_far_as_it_goes(server: Running, *, stream: bool, named: bool) -> None:
    choice: Any = NAMED if named else "required"
    for limit in (1, 2, 3, 6, 12, 20):
        found = heard(create(server, QUESTION, tool_choice=choice, max_tokens=limit, stream=stream))
        assert (found.text, found.reason) == ("", "length")
        if limit <= 3:  # cut off before its arguments
            assert found.arguments == ([("weather", "")] if named else [])
        elif named or limit == 20:
            ((name, arguments),) = found.arguments
            assert (name, "name" in arguments) == ("weather", False)


@streamed
def test_a_response_that_is_cut_off_within_a_call_has_what_there_is_of_it(server: Running, *, stream: bool) -> None:
    for choice, limit in (("required", 2), ({"type": "function", "name": "weather"}, 2), ("required", 14)):
        given: dict[str, Any] = {"tools": FLAT, "tool_choice": choice, "max_output_tokens": limit, "temperature": 0}
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


@streamed
def test_a_stop_string_within_a_call_leaves_its_beginning(server: Running, *, stream: bool) -> None:
    found = heard(create(server, QUESTION, tool_choice="required", stop=["Athens"], stream=stream))
    assert (found.text, found.reason, found.arguments[0][1]) == ("", "stop", '{"city": "')


def test_a_form_that_begins_as_a_call_does_is_no_call() -> None:
    form: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
    tools = offered([{"type": "function", "function": {"name": "weather"}}], form=form)
    for text in ("{", '{"name": "', '{"name": "w', '{"name": "weather"'):
        assert not tools.is_call(text)
        assert tools.calls(text, ended=True) == ()
    (call,) = tools.calls('{"name": "weather", "arguments": {', ended=True)
    assert (call.name, call.arguments) == ("weather", "{")


def test_a_conversation_goes_on_with_the_functions_result(server: Running) -> None:
    (call,) = heard(create(server, QUESTION, tool_choice="required")).calls
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": '{"rain": true}'},
    ]
    create(server, QUESTION, max_tokens=2)  # with the grammar of the next one, which the required call's is not
    reply = create(server, "", messages=messages)
    assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert reply.usage.prompt_tokens_details.cached_tokens > 0.8 * (reply.usage.prompt_tokens - 20)


def test_a_call_is_read_back_as_it_was_written() -> None:
    tools = offered(TOOLS)
    for text in (CALL, OTHER):
        (call,) = tools.calls(text)
        assert call_text(call) == text
    for spelled in ('{"name":"now","arguments":{"a":1}}', '{\n  "name": "now",\n  "arguments": {\n    "a": 1\n  }\n}'):
        (call,) = tools.calls(spelled)
        assert (call, call_text(call)) == (Call("now", '{"a": 1}'), '{"name": "now", "arguments": {"a": 1}}')
    for other in ("", "{", '{"name": 3}', "now()", '{"name":"now","arguments":{}', "[1]"):
        assert tools.calls(other) == ()


def test_the_system_message_describes_the_functions() -> None:
    tools = offered(TOOLS, "required")
    alone = tools.introduced([Message("user", "x")])
    joined = tools.introduced([Message("system", "Be kind."), Message("user", "x")])
    assert [message.role for message in alone] == [message.role for message in joined] == ["system", "user"]
    assert joined[0].content.startswith("Be kind.\n\nCall one of these functions.")
    assert '"The weather."' in alone[0].content


# -- several calls -----------------------------------------------------------------------------------------------------


def test_an_answer_makes_several_calls_if_it_may(hot: Running) -> None:
    made = [choice.message.tool_calls for choice in create_hot(hot, parallel_tool_calls=True, n=8).choices]
    for calls in made:
        check_calls(calls)
    assert 1 < max(map(len, made)) <= 8
    found: list[list[Any]] = [[] for _ in made]
    for part in create_hot(hot, parallel_tool_calls=True, n=8, stream=True):
        (choice,) = part.choices
        assert not choice.delta.content
        for call in choice.delta.tool_calls or []:
            assert call.index == len(found[choice.index])
            found[choice.index].append(call)
    assert [[call.function.arguments for call in calls] for calls in found] == [
        [call.function.arguments for call in calls] for calls in made
    ]


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": False}, {"parallel_tool_calls": None}])
def test_an_answer_makes_one_call_unless_asked(hot: Running, fields: dict[str, Any]) -> None:
    assert [len(choice.message.tool_calls) for choice in create_hot(hot, n=8, **fields).choices] == [1] * 8


@streamed
def test_a_response_has_an_item_for_each_call(hot: Running, *, stream: bool) -> None:
    counts = []
    given: dict[str, Any] = {"tools": FLAT, "tool_choice": "required", "parallel_tool_calls": True, "stream": stream}
    for seed in range(12):
        reply: Any = hot.client.responses.create(
            model="demo", input=QUESTION, max_output_tokens=400, extra_body={"seed": seed}, **given
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
    tools, text = offered(TOOLS, several=True), f"{CALL}\n{OTHER}"
    calls = [Call("now", "{}"), Call("weather", '{"city": "Oslo", "days": 3}')]
    assert [*map(call_text, calls)] == [CALL, OTHER]
    assert [*tools.calls(text)] == [*tools.calls(f"{text}\n")] == calls
    assert tools.calls(text[:-1]) == tools.calls(f"{text}\nHello") == ()
    assert tools.calls(f'{CALL}\n{{"na', ended=True) == tools.calls(CALL), "an undecided one is left out"
    assert "one below the other" in tools.introduced(())[0].content
    user, results = {"role": "user", "content": QUESTION}, {"c0": "noon", "c1": "rain"}
    made = [
        {"id": id, "type": "function", "function": _function(call)} for id, call in zip(results, calls, strict=True)
    ]
    chat = [
        *(user, {"role": "assistant", "content": None, "tool_calls": made}),
        *({"role": "tool", "tool_call_id": id, "content": each} for id, each in results.items()),
    ]
    written = [
        *(user, {"role": "assistant", "content": text}),
        *({"role": "tool", "content": each} for each in results.values()),
    ]
    items = [
        *(user, *({"type": "function_call", "call_id": f"c{n}", **_function(call)} for n, call in enumerate(calls))),
        *({"type": "function_call_output", "call_id": id, "output": each} for id, each in results.items()),
    ]
    more: dict[str, Any] = {"parallel_tool_calls": True, "tool_choice": "required"}
    counts = {create(server, "", messages=each, **more).usage.prompt_tokens for each in (chat, written)}
    reply = server.answer({"input": items, "tools": FLAT, **more}, RESPONSES)
    assert counts == {reply["usage"]["input_tokens"]}


def _function(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def test_errors_name_the_item_of_the_input(server: Running) -> None:
    bad, good = ({"type": "function_call", "name": name, "arguments": "{}"} for name in (7, "now"))
    user = {"role": "user", "content": "Hi"}
    for items, place in (([user, bad, user], "input[1]"), ([good, good, user, bad, user], "input[3]")):
        error = server.refuses({"input": items, "instructions": "Be kind."}, path=RESPONSES)
        assert error["param"] == f"{place}.tool_calls[0].function.name"
