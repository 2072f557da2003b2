"""`serve`: /v1/responses with OpenAI's own client, whole and streamed; log probabilities of all three endpoints."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, FLAT, QUESTION, RESPONSES, STORY, TOOLS, Running, asked, body, lone

# isort: split
from edgedecode import Completion, SamplingOptions, SessionOptions, TokenLogprob
from edgedecode.apps.serve.logprobs import Entries, chat_form, completion_form
from edgedecode.testing import byte_tokenizer
from tests.apps.serving import streamed, text_of


def create(server: Running, **fields: object) -> Any:
    given: dict[str, Any] = {"model": "demo", "input": STORY, "temperature": 0, **fields}
    return server.client.responses.create(**given)


def test_a_response_is_the_answer_of_a_session(server: Running) -> None:
    found = create(server, max_output_tokens=40)
    assert found.output_text == lone(server.pair, most=40)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (18, 40, 58)
    whole = create(server)
    assert (whole.status, whole.incomplete_details, whole.error) == ("completed", None, None)
    assert found.id != whole.id


@pytest.mark.parametrize("most", [7, None])
def test_streamed_events_add_up_to_the_response(server: Running, most: int | None) -> None:
    events = list(create(server, stream=True, max_output_tokens=most))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = ["output_text.done", "content_part.done", "output_item.done", "completed" if most is None else "incomplete"]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == done
    assert {*kinds[4:-4]} == {"output_text.delta"}
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
    texts = {"system": "Be brief.", "user": "My name is Uma.", "assistant": "Hello, Uma."}
    messages = [*({"role": role, "content": text} for role, text in texts.items()), {"role": "user", "content": STORY}]
    assert found.output_text == text_of(server.answer(body(CHAT, most=20) | {"messages": messages}))


@pytest.mark.parametrize("name", ["now", "fs.read", "github/list:all"])
def test_only_allowed_functions_are_called(server: Running, name: str) -> None:
    other = {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
    reply = create(server, input=QUESTION, tools=[FLAT[0], other], tool_choice=choice)
    assert [(each.name, json.loads(each.arguments)) for each in reply.output] == [(name, {})]


@streamed
def test_a_function_is_called_and_its_result_answered(server: Running, *, stream: bool) -> None:
    choice = {"type": "function", "name": "weather"}
    reply = create(server, input=QUESTION, tools=FLAT[:1], tool_choice=choice, stream=stream)
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
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome", "Athens")
    items = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    assert create(server, input=items, tools=FLAT[:1], max_output_tokens=16).usage.output_tokens > 0


# -- log probabilities, whole and streamed, in the forms of all three endpoints ----------------------------------------

NEAR = 1e-3
"""Engines' own kernels round by the width of a pass; ours do not."""


def alone(server: Running, *, top: int, most: int | None = None, stop: tuple[str, ...] = ()) -> Completion:
    """Return the answer of a session without drafts."""
    options = SessionOptions(sampling=SamplingOptions(temperature=0.0), drafter="none")
    with server.pair.session(options) as session:
        return session.generate(STORY, max_tokens=most, stop=stop, top_logprobs=top)


def assert_entries(server: Running, found: list[Any], wanted: tuple[TokenLogprob, ...]) -> None:
    tokenizer = server.pair.tokenizer
    assert len(found) == len(wanted)
    for entry, each in zip(found, wanted, strict=True):
        assert bytes(entry.bytes) == tokenizer.token_bytes(each.token)
        assert entry.logprob == pytest.approx(each.logprob, abs=NEAR)
        assert [bytes(top.bytes) for top in entry.top_logprobs] == [tokenizer.token_bytes(id) for id, _ in each.top]
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([value for _, value in each.top], abs=NEAR)


@pytest.mark.parametrize("top", [0, 3, 20])
@streamed
def test_a_chat_gives_the_log_probabilities_of_a_session(server: Running, top: int, *, stream: bool) -> None:
    wanted = alone(server, top=top)
    reply = server.client.chat.completions.create(**asked(stream=stream, logprobs=True, top_logprobs=top))
    if stream:
        found: list[Any] = []
        for part in reply:
            (choice,) = part.choices
            if choice.logprobs is not None:
                text = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).decode()
                assert text == (choice.delta.content or "")
                found += choice.logprobs.content
    else:
        found = reply.choices[0].logprobs.content
        assert reply.choices[0].logprobs.refusal is None
        assert reply.usage.completion_tokens == len(found)
    assert_entries(server, found, wanted.logprobs)
    assert b"".join(bytes(entry.bytes) for entry in found).decode() == wanted.text
    assert (found[-1].token, found[-1].bytes) == ("<|im_end|>", [])


def test_replies_have_none_unless_asked(server: Running) -> None:
    for fields in ({}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": None}):
        reply = server.client.chat.completions.create(**asked(max_tokens=3, **fields))
        assert reply.choices[0].logprobs is None
    reply = server.client.chat.completions.create(**asked(max_tokens=3, logprobs=True))
    assert [entry.top_logprobs for entry in reply.choices[0].logprobs.content] == [[], [], []]


@streamed
def test_a_stop_strings_tokens_have_entries_too(server: Running, *, stream: bool) -> None:
    """The text is held back while it may begin the stop string, and so are the entries."""
    stop = alone(server, top=0, most=60).text[20:27]
    wanted = alone(server, top=0, most=60, stop=(stop,))
    reply = server.client.chat.completions.create(**asked(stop=[stop], max_tokens=60, logprobs=True, stream=stream))
    choices = [part.choices[0] for part in reply] if stream else reply.choices
    found = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert_entries(server, found, wanted.logprobs)
    assert b"".join(bytes(entry.bytes) for entry in found).decode().startswith(wanted.text + stop)
    assert choices[-1].finish_reason == "stop"


def test_several_answers_have_their_own(server: Running) -> None:
    words = asked(temperature=1.0, seed=5, n=3, max_tokens=8, logprobs=True)
    whole = server.client.chat.completions.create(**words)
    wanted = [[entry.token for entry in choice.logprobs.content] for choice in whole.choices]
    found: list[list[str]] = [[], [], []]
    for part in server.client.chat.completions.create(**words, stream=True):
        if part.choices[0].logprobs:
            found[part.choices[0].index] += [entry.token for entry in part.choices[0].logprobs.content]
    assert found == wanted
    assert ["".join(tokens) for tokens in wanted] == [choice.message.content for choice in whole.choices]
    assert len({*map(tuple, wanted)}) > 1


@pytest.mark.parametrize("top", [0, 5])
@streamed
def test_a_completion_gives_the_older_form(server: Running, top: int, *, stream: bool) -> None:
    start = "Once upon a time"
    with server.pair.session(SessionOptions(sampling=SamplingOptions(), drafter="none")) as session:
        wanted = session.collect(session.complete(start, max_tokens=12, top_logprobs=top))
    reply = server.client.completions.create(**body(COMPLETIONS, start, 12, logprobs=top, stream=stream))
    choices = [part.choices[0] for part in reply] if stream else reply.choices
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    tokens, values, tops, offsets = (
        [each for part in parts for each in getattr(part, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert values == pytest.approx([each.logprob for each in wanted.logprobs], abs=NEAR)
    assert "".join(tokens) == wanted.text
    ends = [*offsets[1:], len(wanted.text)]
    assert [wanted.text[start:end] for start, end in zip(offsets, ends, strict=True)] == tokens
    for token, value, likeliest, each in zip(tokens, values, tops, wanted.logprobs, strict=True):
        assert likeliest[token] == value
        assert len(likeliest) == len({token, *(server.pair.tokenizer.decode([id]) for id, _ in each.top)})


@streamed
@pytest.mark.parametrize("most", [9, None])
def test_a_response_includes_them(server: Running, most: int | None, *, stream: bool) -> None:
    wanted = alone(server, top=2, most=most)
    given = body(RESPONSES, most=most, include=["message.output_text.logprobs"], top_logprobs=2)
    reply = server.client.responses.create(**given, stream=stream)
    if stream:
        events = list(reply)
        deltas = [entry for each in events if each.type == "response.output_text.delta" for entry in each.logprobs]
        assert [each.logprob for each in deltas] == pytest.approx([each.logprob for each in wanted.logprobs], abs=NEAR)
        (done,) = [each for each in events if each.type == "response.output_text.done"]
        assert [entry.token for entry in done.logprobs] == [entry.token for entry in deltas]
        reply = events[-1].response
    assert reply.output_text == wanted.text
    assert_entries(server, reply.output[0].content[0].logprobs, wanted.logprobs)


@streamed
def test_a_calls_tokens_have_entries(server: Running, *, stream: bool) -> None:
    words = asked(tools=TOOLS[:1], tool_choice="required", logprobs=True, stream=stream)
    reply = server.client.chat.completions.create(**words)
    choices = [part.choices[0] for part in reply] if stream else reply.choices
    found = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    written = json.loads(b"".join(bytes(entry.bytes) for entry in found))
    assert written["name"] == "weather"
    assert choices[-1].finish_reason == "tool_calls"


def test_parts_of_a_character_have_exact_bytes_and_one_offset() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("a€b")
    logprobs = [TokenLogprob(token, float("-inf") if place == 4 else -0.5) for place, token in enumerate(tokens)]
    entries = Entries(tokenizer)
    found = [*entries.of(logprobs[:2]), *entries.of(logprobs[2:])]
    assert [each.token for each in found] == ["a", "\ufffd", "\ufffd", "\ufffd", "b"]
    assert b"".join(each.data for each in found).decode() == "a€b"
    assert [each.offset for each in found] == [0, 1, 1, 1, 2]
    chat, legacy = chat_form(found), completion_form(found)
    assert chat.content[4].logprob == legacy.token_logprobs[4] == -9999.0
