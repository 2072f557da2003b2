"""`serve`: Anthropic's API, as its client and Claude Code use it, and the server's limits there."""

import json
from typing import Any

import pytest

from tests.apps.serving import KEY, OFFERED, QUESTION, STORY, Running, lone, read_blocks

# isort: split
from edgedecode import FinishReason, Message, Pair, SamplingOptions
from edgedecode.apps.serve.anthropic.replies import MessagesReply
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.replies import Answered, Written
from edgedecode.apps.serve.requests.tools import Call
from edgedecode.decoding.stats import Stats

SERVER = {"limits": Limits(key=KEY, most_nbytes=60_000)}
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def body(text: str = STORY, /, *, most: int = 8, **fields: Any) -> dict[str, Any]:
    """Return a body. most: tokens of the answer, which is the likeliest one."""
    given = {"model": "demo", "max_tokens": most, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    return given | fields


def events(server: Running, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names are those of their types."""
    reply = server.send("POST", MESSAGES, given | {"stream": True}, **{"X-Api-Key": KEY})
    assert (reply.status, reply.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")
    found = []
    for each in reply.text.rstrip("\n").split("\n\n"):
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_answer_is_that_of_a_session_whole_and_streamed(server: Running) -> None:
    expected, given = lone(server.pair, most=8), body(temperature=1e-6, seed=3)  # a seed of samples: no cache is used
    whole, parts = server.answer(given, MESSAGES), events(server, given)
    tokens = len(server.pair.tokenizer.encode(server.pair.tokenizer.render([Message("user", STORY)])))
    usage = {"input_tokens": tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    assert whole.pop("id").startswith("msg_")
    assert whole == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": expected}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 8},
    }
    start, ping, block, *deltas, stop, end, last = parts
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert start["message"]["usage"].items() >= usage.items()
    assert ping == {"type": "ping"}
    assert block == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(each["type"], each["index"], each["delta"]["type"]) for each in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert len(deltas) > 1
    assert "".join(each["delta"]["text"] for each in deltas) == expected
    assert stop == {"type": "content_block_stop", "index": 0}
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"] == whole["usage"]
    assert last == {"type": "message_stop"}


def test_the_cache_is_counted_apart(server: Running) -> None:
    first = [{"role": "user", "content": "Name a river, please."}]
    answer = server.answer(body(messages=first), MESSAGES)
    more = [*first, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "Another."}]
    usage = server.answer(body(messages=more), MESSAGES)["usage"]
    assert usage["cache_read_input_tokens"] > usage["input_tokens"] > 0
    counted = server.answer({"model": "demo", "messages": more}, COUNT)
    assert counted == {"input_tokens": usage["cache_read_input_tokens"] + usage["input_tokens"]}


def test_a_stop_sequence_is_told(server: Running) -> None:
    text = lone(server.pair, most=8)
    word, other = text.split()[1:3]
    given = body(stop_sequences=["unheard", word, other])
    whole, parts = server.answer(given, MESSAGES), events(server, given)
    assert whole["content"] == [{"type": "text", "text": text.partition(word)[0]}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", word)
    assert parts[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": word}


def test_an_answer_may_end_by_itself_or_with_the_context(pair: Pair, server: Running) -> None:
    assert server.answer(body("Hi", most=60), MESSAGES)["stop_reason"] == "end_turn"
    answer = Answered("So", FinishReason.LENGTH, Stats(context_full=True), [])
    assert MessagesReply(read_blocks({"role": "user", "content": "x"}), "demo").whole([answer]).stop_reason == (
        "model_context_window_exceeded"
    )


def test_system_and_counts_are_those_of_a_session(server: Running) -> None:
    messages = [Message("system", "Be brief."), Message("user", "Hi")]
    expected = len(server.pair.tokenizer.encode(server.pair.tokenizer.render(messages)))
    for system in ("Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]):
        given = body("Hi", system=system)
        del given["max_tokens"]
        assert server.answer(given, COUNT) == {"input_tokens": expected}
        usage = server.answer(body("Hi", system=system), MESSAGES)["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected


def test_an_answer_calls_and_its_results_follow(server: Running) -> None:
    given = body(QUESTION, most=80, tools=OFFERED, tool_choice={"type": "any"})
    whole, parts = server.answer(given, MESSAGES), events(server, given)
    (call,) = whole["content"]
    assert (call["type"], call["name"], whole["stop_reason"]) == ("tool_use", "weather", "tool_use")
    assert call["id"].startswith("toolu_")
    assert call["input"]["city"] == "Athens"
    begun, delta = (
        next(each for each in parts if each["type"] == f"content_block_{kind}") for kind in ("start", "delta")
    )
    assert begun["content_block"] == {
        "type": "tool_use",
        "name": "weather",
        "input": {},
        "id": begun["content_block"]["id"],
    }
    assert delta["delta"]["type"] == "input_json_delta"
    assert json.loads(delta["delta"]["partial_json"]) == call["input"]
    assert [each["type"] for each in parts][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert parts[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
    more = [*given["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert server.answer(given | {"messages": more, "tool_choice": {"type": "none"}}, MESSAGES)["content"][0]["text"]


def test_calls_that_are_cut_off_or_wrong_have_their_places() -> None:
    calls = [Call("now", '{"a": 1}', fault="arguments.a is too much"), Call("weather", '{"ci', cut=True)]
    reply = MessagesReply(read_blocks({"role": "user", "content": "x"}, tools=OFFERED), "demo")
    found: list[Any] = reply.ends(0, Answered("", FinishReason.LENGTH, Stats(), []), calls)
    assert [each["type"].removeprefix("content_block_") for each in found] == [
        "start",
        "delta",
        "stop",
        "message_delta",
    ]
    assert found[0]["content_block"].schema_error == "arguments.a is too much"
    assert found[-1]["delta"]["stop_reason"] == "max_tokens"
    (failed,) = reply.fails("no room")
    assert reply.encoded(failed) == (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no room"}}\n\n'
    )
    assert reply.closes([]) == []


def test_thoughts_are_blocks_of_their_own() -> None:
    reply = MessagesReply(read_blocks({"role": "user", "content": "x"}), "demo")
    answer = Answered("Four.", FinishReason.STOP, Stats(), [], "2 + 2")
    found: list[Any] = [*reply.thinks(0, "2 +"), *reply.thinks(0, " 2"), *reply.writes(0, Written("Four."))]
    found += reply.ends(0, answer, [])
    kinds = [each.get("delta", {}).get("type") or each["type"] for each in found]
    assert kinds == [
        *("content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop", "message_delta"),
    ]
    assert [each["index"] for each in found[:-1]] == [0] * 5 + [1] * 3
    thought, text = MessagesReply(reply.asked, "demo").whole([answer]).content
    assert (thought.thinking, text.text) == ("2 + 2", "Four.")  # type: ignore[union-attr]


def test_thinking_and_effort_are_read() -> None:
    user = {"role": "user", "content": "x"}
    for thinking, effort, expected in (
        (None, "high", ""),
        ("disabled", "max", "off"),
        ("enabled", None, "on"),
        ("enabled", "low", "low"),
        ("adaptive", None, ""),
        ("adaptive", "medium", "medium"),
    ):
        given = {"thinking": {"type": thinking, "budget_tokens": 2048}} if thinking else {}
        found = read_blocks(user, **given, output_config={"effort": effort})
        assert found.think == expected
        assert found.think_tokens == (2048 if thinking else None)


def test_options_have_their_places() -> None:
    options = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 4, "stop_sequences": ["x", ""]}
    found = read_blocks(
        {"role": "user", "content": "x"}, **options, max_tokens=7, stream=True, model="claude-sonnet-4-5"
    )
    assert found.sampling == SamplingOptions(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    assert (found.seed, found.stop, found.max_tokens, found.stream, found.name) == (
        *(4, ("x",), 7, True),
        "claude-sonnet-4-5",
    )
    assert found.notes == ()


# -- refusals ----------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
USER = {"role": "user", "content": "Hi"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": 7}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "text only"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}]},
        "text only",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [7]}]}]},
        "content",
    ),
    ({"messages": [USER, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "x"}]}]}, "tool_use"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"system": 7}, "system"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0]"),
    ({"tools": [{"name": "a", "input_schema": 7}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "no tools"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tools": OFFERED, "tool_choice": {"type": "tool", "name": "nope"}}, "no function"),
    ({"thinking": {"type": "hard"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": -2}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_what_cannot_be_answered_is_refused(server: Running, wrong: dict[str, Any], said: str) -> None:
    for path in (MESSAGES, COUNT):
        server.refuses(body() | wrong, said, path, kind="invalid_request_error")


def test_other_models_names_are_answered_unless_names_are_strict(server: Running, pair: Pair) -> None:
    assert server.answer(body(model="claude-opus-5-5[1m]"), MESSAGES)["model"] == "claude-opus-5-5[1m]"
    with Running(pair, Limits(strict_model=True)) as strict:
        for path in (MESSAGES, COUNT):
            said = "there is no model 'claude-opus-5-5'"
            strict.refuses(body(model="claude-opus-5-5"), said, path, status=404, kind="not_found_error")
