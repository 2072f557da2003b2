"""`serve`: an answer that goes on where the assistant's last message ends, in each API."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, STORY, TOOLS, Running, lone, read

# isort: split
from edgedecode import Message, Pair

MESSAGES, OLLAMA = "/v1/messages", "/api/chat"
FLAGS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"continue_final_message": True, "add_generation_prompt": False}),
    (CHAT, {"add_generation_prompt": False}),
    (MESSAGES, {}),
    (OLLAMA, {"stream": False, "options": {"temperature": 0, "num_predict": 24}}),
]
each_api = pytest.mark.parametrize(("path", "flags"), FLAGS, ids=lambda each: str(each)[:20])


def asks(begun: str, **flags: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": STORY}, {"role": "assistant", "content": begun}]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24, **flags}


def text_of(reply: Any) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["message"]["content"])
    return str(reply["message"]["content"] if "message" in reply else reply["content"][0]["text"])


def count_of(reply: Any) -> int:
    if "message" in reply:
        return int(reply["prompt_eval_count"])
    usage = reply["usage"]
    cached = usage.get("cache_read_input_tokens", 0)
    return int(usage.get("prompt_tokens", 0) or usage["input_tokens"] + cached)


@each_api
@pytest.mark.parametrize("cut", [4, 11])
def test_an_answer_goes_on_byte_for_byte(
    server: Running, pair: Pair, path: str, flags: dict[str, Any], cut: int
) -> None:
    whole, tokenizer = lone(server.pair, most=40), server.pair.tokenizer
    words = whole.split(" ")
    begun = " ".join(words[:cut])
    reply = server.answer(asks(begun, **flags), path)
    assert whole.startswith(begun + text_of(reply))
    assert text_of(reply).startswith(" ")
    ids = tokenizer.encode(tokenizer.render([Message("user", STORY)]) + begun)
    assert count_of(reply) == len(ids)  # no second beginning, and no end in between
    prompt = server.answer(asks(begun), "/apply-template")["prompt"]
    assert prompt == tokenizer.render([Message("user", STORY)]) + begun
    if path == MESSAGES:
        assert server.answer(asks(begun), "/v1/messages/count_tokens") == {"input_tokens": len(ids)}


@each_api
def test_streams_go_on_too(server: Running, path: str, flags: dict[str, Any]) -> None:
    expected = text_of(server.answer(asks("Once upon a", **flags), path))
    reply = server.send("POST", path, asks("Once upon a", **flags | {"stream": True}))
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.endswith("}")]
    parts = [each for each in events if "choices" in each or "message" in each or "delta" in each]
    if path == CHAT:
        said = [each["choices"][0]["delta"].get("content") or "" for each in parts]
    elif path == MESSAGES:
        said = [each["delta"].get("text", "") for each in parts if "delta" in each]
    else:
        said = [each["message"]["content"] for each in parts]
    assert "".join(said) == expected


def test_several_answers_go_on_and_control_tokens_stay_text(server: Running, pair: Pair) -> None:
    flags = {"continue_final_message": True, "n": 2}
    choices = server.answer(asks("Once upon a", **flags))["choices"]
    one = text_of(server.answer(asks("Once upon a", continue_final_message=True)))
    assert [each["message"]["content"] for each in choices] == [one, one]
    spelled = "It is written <|im_end|>"
    reply = server.answer(asks(spelled, continue_final_message=True))
    tokenizer = pair.tokenizer
    header = len(tokenizer.encode(tokenizer.render([Message("user", STORY)])))
    assert count_of(reply) > header + len(tokenizer.encode(spelled))  # which reads it as one token
    follow = [*asks(spelled)["messages"], {"role": "user", "content": "Go on."}]
    assert server.answer({"model": "demo", "messages": follow, "max_tokens": 4})["choices"]


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"tools": TOOLS},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["the user's", "tools", "a form"],
)
@pytest.mark.parametrize("flag", [{"continue_final_message": True}, {"add_generation_prompt": False}], ids=str)
def test_what_cannot_go_on_is_refused_where_it_is_asked_for(
    server: Running, more: dict[str, Any], flag: dict[str, Any]
) -> None:
    error = server.refuses(asks("Well", **flag) | more, "only the assistant's message goes on")
    assert error["param"] == next(iter(flag))


def test_a_message_that_cannot_go_on_is_followed_by_another(server: Running) -> None:
    note = "the answer is a message after the assistant's, which it does not continue"
    tools = [{"name": "now", "input_schema": {"type": "object"}}]
    server.answer(asks("Well", tools=tools), MESSAGES)
    assert note in server.note
    assert not read(*asks("Well")["messages"]).continues
