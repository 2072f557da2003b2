"""`serve`: log probabilities with OpenAI's own client, whole and streamed, in the forms of all three endpoints."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode import Completion, SamplingOptions, SessionOptions, TokenLogprob
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.testing import byte_tokenizer

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.logprobs import Entries, chat_form, completion_form
from tests.apps.test_serve import STORY, Running, asked

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
NEAR = 1e-3
"""Engines' own kernels round by the width of a pass; ours do not."""
INCLUDE = ["message.output_text.logprobs"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), parallel=2)
        yield running
        running.close()


def lone(server: Running, *, top: int, most: int | None = None, stop: tuple[str, ...] = ()) -> Completion:
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
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_gives_the_log_probabilities_of_a_session(server: Running, top: int, *, stream: bool) -> None:
    wanted = lone(server, top=top)
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_strings_tokens_have_entries_too(server: Running, *, stream: bool) -> None:
    """The text is held back while it may begin the stop string, and so are the entries."""
    stop = lone(server, top=0, most=60).text[20:27]
    wanted = lone(server, top=0, most=60, stop=(stop,))
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
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_gives_the_older_form(server: Running, top: int, *, stream: bool) -> None:
    start = "Once upon a time"
    with server.pair.session(SessionOptions(sampling=SamplingOptions(), drafter="none")) as session:
        wanted = session.collect(session.complete(start, max_tokens=12, top_logprobs=top))
    words = {"model": "demo", "prompt": start, "max_tokens": 12, "temperature": 0, "logprobs": top, "stream": stream}
    reply = server.client.completions.create(**words)
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [9, None])
def test_a_response_includes_them(server: Running, most: int | None, *, stream: bool) -> None:
    wanted = lone(server, top=2, most=most)
    reply = server.client.responses.create(
        model="demo",
        input=STORY,
        temperature=0,
        include=INCLUDE,
        top_logprobs=2,
        max_output_tokens=most,
        stream=stream,
    )
    if stream:
        events = list(reply)
        deltas = [entry for each in events if each.type == "response.output_text.delta" for entry in each.logprobs]
        assert [entry.logprob for entry in deltas] == pytest.approx(
            [each.logprob for each in wanted.logprobs], abs=NEAR
        )
        (done,) = [each for each in events if each.type == "response.output_text.done"]
        assert [entry.token for entry in done.logprobs] == [entry.token for entry in deltas]
        reply = events[-1].response
    assert reply.output_text == wanted.text
    assert_entries(server, reply.output[0].content[0].logprobs, wanted.logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_a_calls_tokens_have_entries(server: Running, *, stream: bool) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    parameters |= {"additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    words = asked(tools=[tool], tool_choice="required", logprobs=True, stream=stream)
    reply = server.client.chat.completions.create(**words)
    choices = [part.choices[0] for part in reply] if stream else reply.choices
    found = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    written = json.loads(b"".join(bytes(entry.bytes) for entry in found))
    assert written["name"] == "weather"
    assert choices[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
        ("chat/completions", {"logprobs": True, "model": "demo@switch"}, "leave out switching"),
        ("chat/completions", {"logprobs": True, "model": "demo@switch", "stream": True}, "leave out switching"),
        ("completions", {"prompt": "x", "logprobs": 21}, "logprobs"),
        ("completions", {"prompt": "x", "top_logprobs": 2}, "give the number as logprobs"),
        ("responses", {"input": "x", "top_logprobs": 2}, "top_logprobs needs include"),
        ("responses", {"input": "x", "include": ["everything"]}, "include has 'everything'"),
        ("responses", {"input": "x", "include": "all"}, "include is 'all'"),
        ("responses", {"input": "x", "logprobs": True}, "logprobs is not supported"),
    ],
)
def test_what_does_not_exist_is_refused(path: str, fields: dict[str, object], said: str, server: Running) -> None:
    body = {name: value for name, value in asked().items() if path.startswith("chat") or name != "messages"}
    status, value = server.post(body | fields, f"/v1/{path}")
    assert (status, said in value["error"]["message"]) == (400, True), value


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
    assert chat is not None
    assert legacy is not None
    assert chat.content[4].logprob == legacy.token_logprobs[4] == -9999.0
