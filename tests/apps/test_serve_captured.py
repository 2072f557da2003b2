"""`serve`: one conversation as clients' libraries send it, captured from them: all of them mean the same."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, RESPONSES, Running

# isort: split
from edgedecode import SamplingOptions
from edgedecode.apps.serve.anthropic.bodies import read_messages
from edgedecode.apps.serve.ollama.bodies import read_chat as read_ollama_chat
from edgedecode.apps.serve.requests.openai import read_chat
from edgedecode.apps.serve.responses.bodies import read_response

MESSAGES, OLLAMA = "/v1/messages", "/api/chat"
READS: dict[str, Any] = {
    CHAT: read_chat,
    RESPONSES: read_response,
    MESSAGES: read_messages,
    OLLAMA: read_ollama_chat,
}
QUESTION = "Will it rain in Athens on Monday?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
ANTHROPICS = {"name": "weather", "input_schema": SCHEMA, "description": "The weather"}


def text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


BRIEF: dict[str, Any] = {"role": "system", "content": "Be brief."}
ASKS: dict[str, Any] = {"role": "user", "content": QUESTION}
CALL = {"function": {"name": "weather", "arguments": {"city": "Athens"}}}
SPELLED = {"function": {"arguments": '{"city": "Athens"}', "name": "weather"}, "id": "call_5", "type": "function"}
USED = {"type": "tool_use", "id": "toolu_5", "name": "weather", "input": {"city": "Athens"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_5", "content": "rain"}
NONE: dict[str, Any] = {"images": []}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "litellm 1.110, openai/": (
        CHAT,
        {
            "messages": [
                *(BRIEF, ASKS, {"role": "assistant", "tool_calls": [SPELLED]}),
                {"role": "tool", "tool_call_id": "call_5", "content": "rain"},
            ],
            "max_tokens": 20,
            "tools": [TOOL],
            "stream": True,
        },
    ),
    "litellm 1.110, anthropic/": (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": text(QUESTION)},
                {"role": "assistant", "content": [USED]},
                {"role": "user", "content": [RESULT]},
            ],
            "max_tokens": 20,
            "tools": [ANTHROPICS | {"type": "custom"}],
            "system": text("Be brief."),
            "stream": True,
        },
    ),
    "litellm 1.110, ollama_chat/": (
        OLLAMA,
        {
            "messages": [
                *(BRIEF | NONE, ASKS | NONE),
                {"role": "assistant", "content": "", **NONE, "tool_calls": [CALL | {"id": "call_5"}]},
                {"role": "tool", "content": "rain", **NONE, "tool_call_id": "call_5"},
            ],
            "options": {"num_predict": 20},
            "stream": True,
            "tools": [TOOL],
        },
    ),
    "langchain-openai 1.7": (
        CHAT,
        {
            "messages": [
                *(BRIEF, ASKS, {"content": None, "role": "assistant", "tool_calls": [SPELLED]}),
                {"content": "rain", "role": "tool", "tool_call_id": "call_5"},
            ],
            "stream": True,
            "max_completion_tokens": 20,
            "tools": [TOOL],
        },
    ),
    "langchain-openai 1.7, responses": (
        RESPONSES,
        {
            "input": [
                *(BRIEF | {"type": "message"}, ASKS | {"type": "message"}),
                {
                    "arguments": '{"city": "Athens"}',
                    "call_id": "call_5",
                    "name": "weather",
                    "type": "function_call",
                    "id": "fc_5",
                    "status": "completed",
                },
                {"type": "function_call_output", "output": "rain", "call_id": "call_5"},
            ],
            "stream": True,
            "max_output_tokens": 20,
            "tools": [FUNCTION | {"type": "function"}],
        },
    ),
    "langchain-anthropic 1.7": (
        MESSAGES,
        {
            "messages": [
                ASKS,
                {"role": "assistant", "content": [USED]},
                {"role": "user", "content": [RESULT | {"is_error": False}]},
            ],
            "max_tokens": 20,
            "stream": True,
            "system": "Be brief.",
            "tools": [ANTHROPICS],
        },
    ),
    "langchain-ollama 1.1": (
        OLLAMA,
        {
            "messages": [
                *(BRIEF, ASKS),
                *({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "rain"}),
            ],
            "stream": True,
            "options": {"num_predict": 20},
            "tools": [TOOL],
        },
    ),
}


@pytest.mark.parametrize("client", BODIES)
def test_all_clients_mean_the_same(client: str, server: Running) -> None:
    path, given = BODIES[client]
    asked = READS[path](json.dumps({"model": "demo", **given}).encode(), SamplingOptions())
    system, *others = ((each.role, each.content) for each in (*asked.messages, asked.message))
    assert others == [
        ("user", QUESTION),
        ("assistant", '{"name": "weather", "arguments": {"city": "Athens"}}'),
        ("tool", "rain"),
    ]
    assert system[1].startswith("Be brief.\n")
    assert json.dumps(SCHEMA) in system[1]
    assert (asked.max_tokens, asked.stream, asked.notes) == (20, True, ())
    reply = server.send("POST", path, {"model": "demo", **given}, **{"Content-Type": "application/json"})
    assert reply.status == 200
    assert "Edgedecode-Note" not in reply.headers
    assert '"error":{' not in reply.text
