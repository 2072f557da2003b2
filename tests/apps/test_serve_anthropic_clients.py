"""`serve`: conversations in Anthropic's form, as its client and Claude Code send them."""

from typing import Any

import pytest

from tests.apps.serving import KEY, OFFERED, QUESTION, RECORDED, STORY, Running, lone, read_blocks

# isort: split
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.offered import model_names
from edgedecode.apps.serve.requests.asked import Asked

SERVER = {"limits": Limits(key=KEY)}
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def said(asked: Asked) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in (*asked.messages, asked.message)]


# -- conversations -----------------------------------------------------------------------------------------------------


def test_blocks_become_messages_in_order() -> None:
    calls = [{"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {"x": name}} for name in "ab"]
    results = [
        {"type": "text", "text": "and then?"},
        {"type": "tool_result", "tool_use_id": "toolu_b", "content": "B", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_a", "content": [{"type": "text", "text": "A"}]},
    ]
    asked = read_blocks(
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                *calls,
            ],
        },
        {"role": "user", "content": results},
        {"role": "system", "content": "<total_tokens>99 left</total_tokens>"},
        system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
    )
    assert said(asked) == [
        ("system", "One.\nTwo."),
        ("user", "one\ntwo"),
        ("assistant", 'I look.\n{"name": "a", "arguments": {"x": "a"}}\n{"name": "b", "arguments": {"x": "b"}}'),
        ("tool", "A"),
        ("tool", "Error: B"),
        ("user", "and then?"),
        ("system", "<total_tokens>99 left</total_tokens>"),
    ]
    assert asked.messages[2].thought == "hm"
    assert asked.notes == ()


def test_documents_are_read_and_what_has_no_text_is_left_out() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "a"},
    }
    found = {"type": "search_result", "title": "Web", "source": "x", "content": [{"type": "text", "text": "b"}]}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    asked = read_blocks({"role": "user", "content": [document, search, {"type": "redacted_thinking", "data": "x"}]})
    assert said(asked) == [("user", "Notes\na")]
    assert asked.notes == ("blocks of the types redacted_thinking, server_tool_use were left out",)
    assert said(read_blocks({"role": "user", "content": [found | {"source": None}]})) == [("user", "Web\nb")]


def test_a_note_is_a_header_whatever_it_names(server: Running) -> None:
    odd = {"type": "a\0b\x7fé", "x": 1}
    given = {"messages": [{"role": "user", "content": [block("Hi"), odd]}], "max_tokens": 2}
    server.answer(given, MESSAGES)
    assert "a?b??" in server.note


# -- Claude Code -------------------------------------------------------------------------------------------------------


def block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


ONE_TOOL: dict[str, Any] = RECORDED["Claude Code 2.1.197, one tool"]["body"]
CLAUDE_CODE: dict[str, Any] = ONE_TOOL | {
    "tools": [*ONE_TOOL["tools"], {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "betas": ["interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
    "max_tokens": 12,
    "diagnostics": {"previous_message_id": None},
    "speed": "standard",
    "a_field_of_next_year": {"deep": [1, 2, {"er": None}]},
}
"""A request of Claude Code 2.1 with one of its tools, and with fields that other versions of it have."""
HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    "x-app": "cli",
    "Content-Type": "application/json",
}


def test_what_claude_code_sends_is_answered(server: Running) -> None:
    reply = server.send("POST", f"{MESSAGES}?beta=true", CLAUDE_CODE, **HEADERS)
    assert reply.status == 200, reply.text
    assert "event: message_stop" in reply.text
    note = reply.headers["Edgedecode-Note"]
    for said in ("web_search_20250305", "context_management", "a_field_of_next_year"):
        assert said in note
    assert "diagnostics" not in note
    counted = {name: CLAUDE_CODE[name] for name in ("model", "messages", "system", "tools", "thinking")}
    assert server.send("POST", f"{COUNT}?beta=true", counted, **HEADERS).status == 200


def test_claude_codes_system_prompt_is_the_same_in_each_request() -> None:
    def prompt(header: str) -> list[tuple[str, str]]:
        system = [block(header), *CLAUDE_CODE["system"][1:]]
        return said(read_blocks(*CLAUDE_CODE["messages"], system=system, tools=CLAUDE_CODE["tools"]))

    first, second = (prompt(f"x-anthropic-billing-header: cch={each};") for each in ("36ee5", "0aaa9"))
    assert first == second
    assert "billing" not in first[0][1]
    assert "Be brief." in first[0][1]
    assert '"name": "Read"' in first[0][1]


# -- Anthropic's client ------------------------------------------------------------------------------------------------


def test_anthropics_client_chats(server: Running) -> None:
    anthropic = pytest.importorskip("anthropic")
    expected = lone(server.pair, most=8)
    greedy = {"temperature": 0}  # newer clients have no name for it
    given: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": STORY}]}
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=KEY, max_retries=0) as client:
        message = client.messages.create(**given, max_tokens=8, extra_body=greedy)
        assert [each.text for each in message.content] == [expected]
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 8)
        with client.messages.stream(**given, max_tokens=8, extra_body=greedy) as stream:
            assert "".join(stream.text_stream) == expected
            final = stream.get_final_message()
        assert (final.content[0].text, final.stop_reason) == (expected, "max_tokens")
        assert final.usage.output_tokens == 8
        assert final.usage.input_tokens + final.usage.cache_read_input_tokens == (
            client.messages.count_tokens(**given).input_tokens
        )
        asks = {"messages": [{"role": "user", "content": QUESTION}], "tools": OFFERED, "tool_choice": {"type": "any"}}
        with client.messages.stream(model="demo", max_tokens=80, extra_body=greedy, **asks) as stream:
            streamed = stream.get_final_message()
        (call,) = streamed.content
        assert (call.name, call.input["city"], streamed.stop_reason) == ("weather", "Athens", "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        asks["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        assert client.messages.create(model="demo", max_tokens=8, **asks).role == "assistant"
        models = [*client.models.list()]
        assert [each.id for each in models] == model_names(server.pair)
        assert (models[0].type, models[0].display_name) == ("model", "demo")
        assert client.models.retrieve("demo").created_at == models[0].created_at
        beta = client.beta.messages.create(**given, max_tokens=4, betas=["interleaved-thinking-2025-05-14"])
        assert beta.usage.output_tokens == 4
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            client.messages.create(model="demo", max_tokens=8, messages=[{"role": "user", "content": "x y " * 9000}])
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        with pytest.raises(anthropic.BadRequestError, match="text only"):
            client.messages.create(model="demo", max_tokens=8, messages=[{"role": "user", "content": [image]}])
    with (
        anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError, match="X-Api-Key"),
    ):
        client.messages.create(**given, max_tokens=8)


def test_anthropics_tool_runner_goes_on_without_a_thread(server: Running) -> None:
    """It asks the server to hold the conversation, and sends the whole one where it reads that the server cannot."""
    anthropic = pytest.importorskip("anthropic")
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "rain"

    given: dict[str, Any] = {"model": "demo", "max_tokens": 60, "messages": [{"role": "user", "content": QUESTION}]}
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=KEY, max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            **given, tools=[weather], tool_choice={"type": "any"}, max_iterations=2, extra_body={"temperature": 0}
        )
        replies = [*runner]
        with pytest.raises(anthropic.BadRequestError, match="holds no conversations") as refused:
            client.beta.messages.create(**given, thread={"type": "create"})
    assert [each.stop_reason for each in replies] == ["tool_use", "tool_use"]
    assert asked
    assert refused.value.body["error"]["details"] == {"error_code": "thread_unsupported_request"}
