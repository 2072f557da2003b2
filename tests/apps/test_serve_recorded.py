"""`serve`: requests recorded from programs that ran against it; their texts are shortened, their fields are whole."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, RECORDED, RESPONSES, Running

# isort: split
from edgedecode import SamplingOptions
from edgedecode.apps.serve.anthropic.bodies import read_messages
from edgedecode.apps.serve.ollama.bodies import read_chat as read_ollama_chat
from edgedecode.apps.serve.requests.openai import read_chat
from edgedecode.apps.serve.responses.bodies import read_response

READS: dict[str, Any] = {
    CHAT: read_chat,
    RESPONSES: read_response,
    "/v1/messages": read_messages,
    "/api/chat": read_ollama_chat,
}
NOTES = {
    "Claude Code 2.1.197": ["context_management was not followed"],
    "Codex 0.171": ["tools of the types web_search were left out"],
    "Vercel AI SDK 6": ["max_output_tokens was not followed", "tool_choice was not followed"],
}
"""What is not followed, by how the program's name begins."""
TOO_LONG = ("Claude Code 2.1.197",)
"""Whose tools alone are longer than the context of the bundled pack."""


def offered(tools: list[dict[str, Any]]) -> list[str]:
    """Return the names of the functions of a body."""
    found = [each.get("function", each) for each in tools if each.get("type") != "web_search"]
    return [each["name"] for each in found]


@pytest.mark.parametrize("program", RECORDED)
def test_what_programs_send_is_answered(program: str, server: Running) -> None:
    path, body = RECORDED[program]["path"], RECORDED[program]["body"]
    asked = READS[path](json.dumps(body).encode(), SamplingOptions())
    wanted = [] if body.get("tool_choice") in ("none", {"type": "none"}) else offered(body.get("tools", []))
    assert [each.name for each in (asked.tools.functions if asked.tools else ())] == wanted
    notes = next((notes for name, notes in NOTES.items() if program.startswith(name)), [])
    assert [each for each in asked.notes if "propertyNames" not in each] == notes
    short = {CHAT: {"max_tokens": 4}, "/v1/messages": {"max_tokens": 4}, RESPONSES: {"max_output_tokens": 4}}
    few = short.get(path, {"options": body.get("options", {}) | {"num_predict": 4}})
    reply = server.send("POST", path, body | few, **{"Content-Type": "application/json"})
    if program in TOO_LONG:
        assert reply.status == 400
        assert "prompt is too long: " in json.loads(reply.text)["error"]["message"]
        return
    assert reply.status == 200, reply.text
    assert '"error":{' not in reply.text
