"""`serve`: conversations in the forms that agents' libraries send, from bodies captured from them."""

import re
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, FLAT, RESPONSES, TOOLS, USER, Running, body, offered, read

# isort: split
from msgspec import to_builtins
from openai.types.responses import ResponseUsage

from edgedecode import FinishReason, InputError, Message
from edgedecode.apps.serve.replies import Answered, CompletionsReply, Written, calls_of
from edgedecode.apps.serve.requests.asked import PastTurn
from edgedecode.apps.serve.responses.kept_items import KeptItems
from edgedecode.apps.serve.responses.replies import OutputMessage, OutputText, ResponsesReply
from edgedecode.decoding.stats import Stats
from edgedecode.memory.budget import Budget
from tests.apps.serving import read_items, streamed, text_of


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(role: str, text: str) -> dict[str, Any]:
    """Return an item of a response's input."""
    return {"role": role, "content": [{"type": f"{'out' if role == 'assistant' else 'in'}put_text", "text": text}]}


# -- the last message --------------------------------------------------------------------------------------------------

ASSISTANT = {"role": "assistant", "name": "a"}
ENDS: dict[str, tuple[str, dict[str, Any], list[tuple[str, str]]]] = {
    "pydantic-ai, LangChain, LlamaIndex": (CHAT, {"messages": [system("Say hi")]}, [("system", "Say hi")]),
    "pydantic-ai": (
        RESPONSES,
        {"input": [{"role": "user", "content": ""}], "instructions": "Say hi"},
        [("system", "Say hi"), ("user", "")],
    ),
    "instructor": (RESPONSES, {"input": [{"role": "developer", "content": "Say hi"}]}, [("system", "Say hi")]),
    "an instruction after the question": (
        CHAT,
        {"messages": [USER, system("Answer briefly.")]},
        [("user", "Hi"), ("system", "Answer briefly.")],
    ),
    "semantic-kernel's group of agents": (
        CHAT,
        {"messages": [system("Help"), USER, ASSISTANT | {"content": "Hello."}, ASSISTANT | {"content": "Well?"}]},
        [("system", "Help"), ("user", "Hi"), ("assistant", "Hello."), ("assistant", "Well?")],
    ),
    "Vercel AI SDK's beginning of an answer": (
        RESPONSES,
        {"input": [said("user", "Say hi"), said("assistant", "Well,")]},
        [("user", "Say hi"), ("assistant", "Well,")],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_answer_follows_whosever_message_is_last(server: Running, name: str) -> None:
    path, given, texts = ENDS[name]
    messages = [Message(role, text) for role, text in texts]
    reply = server.answer(body(path, most=8) | given, path)
    with server.pair.session(messages=messages[:-1], options=None) as session:
        expected = session.generate(messages[-1], max_tokens=8)
    assert text_of(reply) == expected.text
    tokenizer = server.pair.tokenizer
    usage = reply["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(tokenizer.encode(tokenizer.render(messages)))


def test_a_note_says_that_an_answer_is_not_continued() -> None:
    answer = {"role": "assistant", "content": "Well,"}
    note = "the answer is a message after the assistant's, which it does not continue"
    assert read(USER, answer).notes == read_items(USER, said("assistant", "Well,")).notes == (note,)
    assert read(USER, answer, USER).notes == ()


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["none", "auto", "required"])
def test_a_choice_may_be_a_word_as_an_object(word: str) -> None:
    """litellm's proxy takes both."""
    plain = read(USER, tools=TOOLS, tool_choice=word)
    assert read(USER, tools=TOOLS, tool_choice={"type": word}) == plain
    assert read(USER, tools=TOOLS, tool_choice={"type": word, "function": None}) == plain
    response = read_items(USER, tools=FLAT, tool_choice={"type": word})
    assert response == read_items(USER, tools=FLAT, tool_choice=word)
    assert (response.tools, response.echoed["tool_choice"]) == (plain.tools, word)
    assert (plain.tools is None) == (word == "none")


NAMED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "function", "function": {"name": "now"}}, {"type": "function", "name": "now"}),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS[1:]}},
        {"type": "allowed_tools", "mode": "auto", "tools": FLAT[1:]},
    ),
]


@pytest.mark.parametrize(("nested", "flat"), NAMED)
def test_functions_have_the_form_of_either_endpoint(nested: dict[str, Any], flat: dict[str, Any]) -> None:
    """Cursor sends both in one chat, and DSPy chats' form to responses."""
    expected = read(USER, tools=TOOLS, tool_choice=nested).tools
    assert [each.name for each in expected.functions] == ["now"]
    for tools, choice in ((TOOLS, flat), (FLAT, nested), (FLAT, flat), ([TOOLS[0], FLAT[1]], flat)):
        assert read(USER, tools=tools, tool_choice=choice).tools == expected
        response = read_items(USER, tools=tools, tool_choice=choice)
        assert response.tools == expected
        assert response.echoed["tools"] == FLAT


def test_tools_that_are_no_functions_are_left_out_of_chats_too() -> None:
    """Such as the one that Cursor edits files with."""
    custom = {"type": "custom", "custom": {"name": "ApplyPatch", "format": {"type": "grammar"}}}
    asked = read(USER, tools=[custom, *TOOLS, {"type": "web_search"}])
    assert asked.tools == read(USER, tools=TOOLS).tools
    assert asked.notes == ("tools of the types custom, web_search were left out",)
    assert read(USER, tools=[custom]).tools is None


GROUP: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__clock",
    "description": "Tools of the server clock.",
    "tools": [FLAT[1] | {"parameters": {"type": "object", "properties": {}}}, {"type": "custom", "name": "edit"}],
}


@streamed
def test_functions_of_a_namespace_are_called_by_both_names(server: Running, *, stream: bool) -> None:
    """Codex sends each MCP server's functions so, and knows the calls by both fields."""
    given: dict[str, Any] = {"input": [USER], "tools": [GROUP, FLAT[0]], "tool_choice": "required"}
    given["tool_choice"] = {"type": "function", "name": "mcp__clock.now"}
    reply = server.client.responses.create(model="demo", max_output_tokens=60, stream=stream, **given)
    if stream:
        events = [*reply]
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        reply = events[-1].response
        assert done.name == "now"
    (call,) = reply.output
    assert (call.type, call.name, call.namespace, call.arguments) == ("function_call", "now", "mcp__clock", "{}")
    asked = read_items(USER, call.model_dump(), output(call.call_id, "noon"), tools=[GROUP, FLAT[0]])
    assert [each.content for each in asked.messages[-1:]] == ['{"name": "mcp__clock.now", "arguments": {}}']
    names = [(each.name, each.namespace) for each in asked.tools.functions]
    assert names == [("mcp__clock.now", "mcp__clock"), ("weather", "")]
    assert asked.notes == ("tools of the types custom were left out",)


@pytest.mark.parametrize("name", ["mcp__clock.now", "a:b", "a/b-c", "plain", "météo_天气"])
def test_a_call_that_is_cut_off_may_have_any_name(name: str) -> None:
    tools = offered([{"type": "function", "name": name}])
    for begun in (f'{{"name": "{name[:-1]}', f'{{"name": "{name}", "arguments": {{"a', f'{{"name": "{name}"'):
        assert [each.name for each in tools.calls(begun, ended=True)] == [name]


@streamed
def test_the_limit_cuts_off_the_last_call_only(*, stream: bool) -> None:
    call = '{"name": "now", "arguments": {}}'
    asked = read_items(USER, tools=FLAT, parallel_tool_calls=True, stream=stream)
    assert asked.tools is not None
    text, reply, reason = f'{call}\n{call}\n{{"name": "now", "arg', ResponsesReply(asked, "demo"), FinishReason.LENGTH
    if stream:
        events = reply.ends(0, Answered(text, reason, Stats(), []), calls_of(asked, text))
        items: Any = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    else:
        items = reply.whole([Answered(text, reason, Stats(), [])]).output
    assert [each.status for each in items] == ["completed", "completed", "incomplete"]


@pytest.mark.parametrize("form", [CompletionsReply, ResponsesReply])
def test_text_that_was_written_is_not_sent_as_a_call_again(form: type[CompletionsReply | ResponsesReply]) -> None:
    """An answer to a schema may read like a call at its end, though it was written from its beginning."""
    asks = read_items(USER, tools=FLAT) if form is ResponsesReply else read(USER, tools=TOOLS)
    text = '{"arguments": {}, "name": "now"}'
    assert calls_of(asks, text)
    reply, end = form(asks, "demo"), Answered(text, FinishReason.STOP, Stats(), [])
    events = [*reply.begins(0, Stats()), *reply.writes(0, Written(text)), *reply.ends(0, end, ())]
    if form is CompletionsReply:
        assert not any("tool_calls" in choice["delta"] for event in events for choice in event["choices"])
    else:
        names = [event["type"].removeprefix("response.") for event in events]
        assert names[-3:] == ["output_text.done", "content_part.done", "output_item.done"]


def test_an_error_in_a_namespace_has_its_place() -> None:
    bad = {"type": "function", "name": "bad", "strict": True, "parameters": {"not": {}}}
    with pytest.raises(InputError, match=r"^tools\[1\]\.tools\[0\]\.parameters\.not"):
        read_items(USER, tools=[FLAT[0], {"type": "namespace", "name": "a", "tools": [bad]}])


@pytest.mark.parametrize(("tools", "place"), [(TOOLS, "tools[2].function.parameters"), (FLAT, "tools[2].parameters")])
def test_an_error_has_the_place_in_the_form_that_was_sent(tools: list[dict[str, Any]], place: str) -> None:
    bad: dict[str, Any] = {"name": "bad", "strict": True, "parameters": {"not": {}}}
    bad = {"type": "function", "function": bad} if tools is TOOLS else {"type": "function", **bad}
    for reader in (read, read_items):
        with pytest.raises(InputError, match=f"^{re.escape(place)}.not"):
            reader(USER, tools=[*tools, bad])


def called(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "now", "arguments": "{}"}


def output(id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


CALL = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    ("between", "contents"),
    [
        ([said("assistant", "Wait.")], ["1", "Wait."]),  # litellm, from Anthropic's messages
        ([said("user", "Quick!")], ["1", "Quick!"]),
        ([said("assistant", "Wait."), said("user", "Quick!")], ["1", "Wait.", "Quick!"]),
    ],
)
def test_an_output_belongs_to_its_call_wherever_it_stands(between: list[dict[str, Any]], contents: list[str]) -> None:
    asked = read_items(USER, called("a"), *between, output("a", "1"), USER)
    assert [each.content for each in asked.messages] == ["Hi", CALL, *contents]


def test_outputs_of_several_calls_follow_them_in_the_order_of_the_calls() -> None:
    between = (called("a"), called("b"), output("b", "2"), said("user", "Well?"), output("a", "1"))
    asked = read_items(USER, *between, called("a"), output("a", "3"))
    assert [each.content for each in asked.messages] == ["Hi", f"{CALL}\n{CALL}", "1", "2", "Well?", CALL]
    assert (asked.role, asked.text) == ("tool", "3")


# -- fields ------------------------------------------------------------------------------------------------------------


def test_what_should_be_stored_is_answered_with_a_note() -> None:
    """Semantic Kernel's agents ask for it by default. Responses are stored."""
    assert read(USER, store=True).notes == ("store was not followed: no answer can be retrieved later",)
    assert read(USER, store=False).notes == read_items(USER, store=True).notes == ()


def test_as_many_of_the_best_as_there_are_answers_are_all(server: Running) -> None:
    """LangChain's completions with n."""
    given = body(COMPLETIONS, n=2)
    plain, best = (server.answer(given | more, COMPLETIONS)["choices"] for more in ({}, {"best_of": 2}))
    assert best == plain


@pytest.mark.parametrize(
    "more", [{"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."}]
)
def test_a_refusal_is_what_the_assistant_said(more: dict[str, Any]) -> None:
    assert read(USER, {"role": "assistant", **more}, USER).messages[1] == Message("assistant", "No.")


@pytest.mark.parametrize("obfuscation", [True, False])
def test_padding_of_a_stream_is_not_missed(server: Running, *, obfuscation: bool) -> None:
    options = {"include_obfuscation": obfuscation}
    events = [*server.client.responses.create(**body(RESPONSES), stream=True, stream_options=options)]
    assert events[-1].type in ("response.completed", "response.incomplete")


@streamed
def test_items_of_past_answers_may_be_referred_to(server: Running, *, stream: bool) -> None:
    """AI SDK sends only their ids, unless it is told not to store them."""
    ask, more = said("user", "Will it rain in Athens on Monday?"), said("user", "And in Oslo?")
    given: dict[str, Any] = {"model": "demo", "temperature": 0, "max_output_tokens": 40, "tools": FLAT[:1]}
    for choice in ("none", "required"):
        reply = server.client.responses.create(input=[ask], tool_choice=choice, stream=stream, **given)
        (item,) = ([*reply][-1].response if stream else reply).output
        results = [output(item.call_id, "rain")] if choice == "required" else []
        texts = []
        for earlier in ({"type": "item_reference", "id": item.id}, {"id": item.id}, item.model_dump()):
            whole = server.client.responses.create(input=[ask, earlier, *results, more], tool_choice="none", **given)
            texts.append((whole.output_text, whole.usage.input_tokens))
        assert len({*texts}) == 1
    fresh = server.client.responses.create(input=[ask, more], tool_choice="none", **given)
    assert fresh.usage.input_tokens < texts[0][1]


@streamed
def test_a_response_continues_another(server: Running, *, stream: bool) -> None:
    """OpenAI's agents, LangChain and AI SDK send the id of the last response and what is new."""
    given: dict[str, Any] = {"model": "demo", "temperature": 0, "max_output_tokens": 40, "tools": FLAT[:1]}

    def answered(items: Any, choice: str = "none", **more: Any) -> Any:
        reply = server.client.responses.create(input=items, tool_choice=choice, stream=stream, **given, **more)
        return [*reply][-1].response if stream else reply

    ask, more = said("user", "Will it rain in Athens on Monday?"), said("user", "And in Oslo?")
    first = answered([ask], "required", instructions="Be brief.")
    result = output(first.output[0].call_id, "rain")
    second = answered([result], previous_response_id=first.id)
    third = answered([more], previous_response_id=second.id)
    whole = answered([ask, *(each.model_dump() for each in first.output), result, *second.output, more])
    assert (third.output_text, third.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    assert (third.previous_response_id, third.store, whole.previous_response_id) == (second.id, True, None)


def test_errors_in_the_new_items_have_their_own_places(server: Running) -> None:
    first = server.answer({"input": [USER, USER], "max_output_tokens": 2}, RESPONSES)
    more = {"input": [output("nothing", "x")], "previous_response_id": first["id"]}
    assert server.refuses(more, path=RESPONSES)["param"] == "input[0].call_id"


def test_what_should_not_be_stored_is_not(server: Running) -> None:
    reply = server.answer(body(RESPONSES, store=False), RESPONSES)
    (item,) = reply["output"]
    refers = {"input": [{"type": "item_reference", "id": item["id"]}]}
    assert server.refuses(refers, "which this server does not have", RESPONSES)["param"] == "input[0]"
    for id in (reply["id"], item["id"]):
        refused = server.refuses(body(RESPONSES, previous_response_id=id), path=RESPONSES)
        assert refused["param"] == "previous_response_id"


def test_a_response_is_no_item(server: Running) -> None:
    refers = {"input": [{"type": "item_reference", "id": server.answer(body(RESPONSES), RESPONSES)["id"]}]}
    assert server.refuses(refers, "which this server does not have", RESPONSES)["param"] == "input[0]"


def message(id: str) -> OutputMessage:
    return OutputMessage(id, "assistant", "completed", [OutputText("x" * 600, [], [])])


def test_items_are_kept_in_a_megabyte_of_the_budget() -> None:
    budget, tight = Budget(4 << 20), Budget(1 << 19)
    kept, none = KeptItems(budget), KeptItems(tight)
    for number in range(3000):
        kept.keep(f"resp_{number}", PastTurn(f"resp_{number - 1}", [USER]), [message(f"msg_{number}")])
    none.keep("resp_0", PastTurn("", []), [message("msg_0")])
    assert (kept.find("msg_0"), none.find("msg_0"), tight.used_nbytes, budget.used_nbytes) == (None, None, 0, 1 << 20)
    assert kept.find("msg_2999") == to_builtins(message("msg_2999"))
    assert 400 < sum(kept.find(f"msg_{number}") is not None for number in range(3000)) < 550
    assert kept.before("resp_2999") is None  # its beginning is gone
    kept.keep("resp_big", PastTurn("", [USER | {"content": "x" * (1 << 19)}]), [message("msg_big")])
    assert kept.before("resp_big") is None
    assert kept.find("msg_2900") is not None


def test_usage_of_a_response_has_the_form_that_openais_client_declares(server: Running) -> None:
    reply = server.answer(body(RESPONSES), RESPONSES)
    usage = ResponseUsage.model_validate(reply["usage"])
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert reply["usage"]["input_tokens_details"].keys() == {"cached_tokens", "cache_write_tokens"}
