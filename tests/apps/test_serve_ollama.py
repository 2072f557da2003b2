"""`serve`: Ollama's API, as its clients use it, and the server's limits there."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.apps.serving import KEY, QUESTION, STORY, TOOLS, USER, Running, lone

# isort: split
from edgedecode import FinishReason, Message, Pair, SamplingOptions
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.offered import model_names
from edgedecode.apps.serve.ollama.bodies import read_chat, read_generate
from edgedecode.apps.serve.ollama.replies import OllamaReply
from edgedecode.apps.serve.replies import Answered
from edgedecode.apps.serve.requests.tools import Call
from edgedecode.decoding.stats import Stats

SERVER = {"limits": Limits(key=KEY, most_nbytes=20_000)}
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}


def test_a_client_finds_a_server(server: Running) -> None:
    for method in ("GET", "HEAD"):
        for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
            reply = server.send(method, "/", **headers)
            assert (reply.status, reply.text) == (200, "Ollama is running" if method == "GET" else "")
        version = server.send(method, "/api/version", **AUTHORIZATION)
        assert version.status == 200
    version = json.loads(server.get("/api/version", **AUTHORIZATION).text)["version"]
    assert [part.isdigit() for part in version.split(".")] == [True] * 3
    page = server.get("/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert "<html" in page.text
    assert page.headers["Vary"] == "Accept"  # a cache must not give one client what another asked for


def test_models_are_listed_and_shown(server: Running) -> None:
    names, entry = model_names(server.pair), server.pair.manifest.models["target"]
    listed = json.loads(server.get("/api/tags", **AUTHORIZATION).text)["models"]
    assert [each["name"] for each in listed] == [each["model"] for each in listed] == names
    assert all(each["size"] >= server.pair.manifest.nbytes > 0 for each in listed)
    assert all(len(bytes.fromhex(each["digest"])) == 32 for each in listed)
    assert len({each["digest"] for each in listed}) == len(names)  # `llm` takes names of one digest for one model
    details = {"parent_model": "", "format": "onnx", "family": "llama", "families": ["llama"]}
    details |= {"parameter_size": f"{entry.parameters / 1e6:.2f}M", "quantization_level": f"{entry.bits}-bit"}
    assert all(each["details"] == details for each in listed)
    for name in (*names, "demo:latest"):
        shown = server.answer({"model": name}, "/api/show")
        assert shown == server.answer({"name": name, "verbose": True}, "/api/show")
    assert shown["details"] == details
    assert shown["license"] == entry.license
    assert shown["template"] == server.pair.tokenizer.chat_template.source
    assert shown["model_info"]["general.parameter_count"] == entry.parameters
    assert shown["model_info"]["llama.context_length"] == entry.context
    assert {"completion", "tools"} <= {*shown["capabilities"]}
    (loaded,) = json.loads(server.get("/api/ps", **AUTHORIZATION).text)["models"]
    assert (loaded["name"], loaded["context_length"]) == ("demo", entry.context)
    assert loaded["size"] == server.pair.budget.used_nbytes


SHOWN: list[tuple[object, int, str]] = [
    ({}, 400, "model"),
    ({"model": 7}, 400, "model is '7'"),
    ({"model": ""}, 400, "model"),
    (b"{", 400, "not JSON"),
    ([], 400, "not a JSON object"),
    ({"model": "nope"}, 404, "there is no model 'nope'; this server has: demo, "),
    ({"model": "demo:other"}, 404, "there is no model"),
]


@pytest.mark.parametrize(("given", "status", "said"), SHOWN)
def test_what_cannot_be_shown_is_refused(server: Running, given: object, status: int, said: str) -> None:
    server.refuses(given, said, "/api/show", status=status)


def test_ollamas_client_finds_the_models(server: Running, pair: Pair) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(f"http://127.0.0.1:{server.port}", headers=AUTHORIZATION) as client:
        assert [each.model for each in client.list().models] == model_names(pair)
        assert client.show("demo").modelinfo["general.architecture"] == "llama"
        assert client.ps().models[0].model == "demo"
        with pytest.raises(ollama.ResponseError, match="there is no model 'nope'") as caught:
            client.show("nope")
    assert caught.value.status_code == 404


# -- answers -----------------------------------------------------------------------------------------------------------

CHAT, GENERATE = "/api/chat", "/api/generate"
FIGURES = ("total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")
BOTH = pytest.mark.parametrize("path", [CHAT, GENERATE])


def body(path: str, text: str = STORY, /, *, most: int = 8, **fields: Any) -> dict[str, Any]:
    """Return a body. most: tokens of the answer, which is the likeliest one."""
    given = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    options = {"temperature": 0, "num_predict": most, **fields.pop("options", {})}
    return {"model": "demo", "options": options, **given, **fields}


def lines(server: Running, given: dict[str, Any], path: str) -> list[dict[str, Any]]:
    reply = server.send("POST", path, given, **AUTHORIZATION)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines()]


def said(part: dict[str, Any], name: str = "content") -> str:
    return str(part.get("response", "") if "message" not in part else part["message"].get(name, ""))


@BOTH
def test_an_answer_is_that_of_a_session_whole_and_streamed(server: Running, path: str) -> None:
    expected = lone(server.pair, most=8)
    whole, parts = server.answer(body(path, stream=False), path), lines(server, body(path), path)
    assert said(whole) == "".join(map(said, parts)) == expected
    assert len(parts) > 2
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    prompt = server.pair.tokenizer.render([Message("user", STORY)])
    for end in (whole, parts[-1]):
        assert (end["model"], end["done"], end["done_reason"]) == ("demo", True, "length")
        assert all(isinstance(end[name], int) and end[name] > 0 for name in FIGURES)
        assert end["total_duration"] >= end["eval_duration"]
        assert end["load_duration"] == 0
        assert end["eval_count"] == 8
        assert end["prompt_eval_count"] == len(server.pair.tokenizer.encode(prompt))
        assert datetime.fromisoformat(end["created_at"]).tzinfo is not None
        assert "warnings" not in end


def test_a_system_message_and_a_raw_prompt_are_those_of_openais_api(server: Running) -> None:
    given = body(GENERATE, "Hi", system="Be brief.", stream=False)
    messages = [Message("system", "Be brief."), Message("user", "Hi")]
    with server.pair.session(messages=messages[:1]) as session:
        assert server.answer(given, GENERATE)["prompt_eval_count"] == len(
            server.pair.tokenizer.encode(server.pair.tokenizer.render(messages))
        )
        assert said(server.answer(given, GENERATE)) == session.generate("Hi", max_tokens=8).text
    raw = server.answer(body(GENERATE, STORY, raw=True, stream=False), GENERATE)
    completed = {"model": "demo", "prompt": STORY, "temperature": 0, "max_tokens": 8}
    assert raw["response"] == server.answer(completed, "/v1/completions")["choices"][0]["text"]


@BOTH
def test_options_are_followed(server: Running, path: str) -> None:
    text = lone(server.pair, most=8)
    word = text.split()[1]
    stopped = server.answer(body(path, stream=False, options={"stop": [word]}), path)
    assert (said(stopped), stopped["done_reason"]) == (text.partition(word)[0], "stop")
    seeded = {"temperature": 1.0, "seed": 5}
    assert said(server.answer(body(path, stream=False, options=seeded), path)) == lone(
        server.pair, seed=5, temperature=1.0, most=8
    )
    small = server.answer(body(path, most=-1, stream=False, options={"num_ctx": 64}), path)
    assert small["prompt_eval_count"] + small["eval_count"] <= 64
    assert small["done_reason"] == "length"


def test_each_option_has_its_place(server: Running) -> None:
    options = {"top_k": 3, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": 9, "num_ctx": 99}
    options |= {"presence_penalty": 0.3, "frequency_penalty": 0.4, "seed": 4, "stop": "x", "num_predict": 7}
    for path, reads in ((CHAT, read_chat), (GENERATE, read_generate)):
        found = reads(json.dumps(body(path, options=options)).encode(), SamplingOptions())
        assert found.sampling == SamplingOptions(
            temperature=0,
            top_k=3,
            top_p=0.5,
            min_p=0.1,
            repetition_penalty=1.2,
            penalty_window=9,
            presence_penalty=0.3,
            frequency_penalty=0.4,
        )
        assert (found.seed, found.stop, found.max_tokens, found.context) == (4, ("x",), 7, 99)
        assert found.stream
        assert found.notes == ()


@BOTH
def test_what_is_not_followed_is_named_at_the_end(server: Running, path: str) -> None:
    options = {"num_gpu": 7, "num_ctx": 1 << 20, "mirostat": 1, "typical_p": 1.0, "tfs_z": 1, "penalize_newline": False}
    given = body(path, options=options, template="{{ .Prompt }}", keep_alive="5m")
    *parts, end = lines(server, given, path)
    assert not any("warnings" in part for part in parts)
    named = {" ".join(each.split()[:4]) for each in end["warnings"]}
    assert named == {
        "template was not followed",
        "options.num_gpu was not followed",
        "options.num_ctx was not followed",
        "options.mirostat was not followed:",
    }


@BOTH
def test_nothing_to_answer_says_that_the_model_is_there(server: Running, path: str) -> None:
    for given in ({"model": "demo"}, {"model": "demo", "messages": [], "prompt": "", "keep_alive": 0}):
        reply = server.answer(given, path)
        assert (reply["done"], reply["done_reason"], said(reply)) == (True, "load", "")


def test_a_call_is_an_object_and_its_results_follow_in_any_form(server: Running) -> None:
    given = body(CHAT, QUESTION, most=80, tools=TOOLS)
    parts = [part["message"] for part in lines(server, given, CHAT)]
    whole = server.answer(given | {"stream": False}, CHAT)["message"]
    calls = [call for message in parts for call in message.get("tool_calls", [])]
    assert [call["function"] for call in calls] == [call["function"] for call in whole["tool_calls"]]
    assert calls[0]["function"]["name"] == "weather"
    assert isinstance(calls[0]["function"]["arguments"], dict)
    assert not any(message["content"] for message in (*parts, whole))
    asks = {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {}}} for name in "ab"]}
    results = [{"role": "tool", "tool_name": name, "content": name.upper()} for name in "ba"]
    asked = {"model": "demo", "messages": [USER, asks, *results]}
    found = read_chat(json.dumps(asked).encode(), SamplingOptions())
    assert [each.content for each in (*found.messages, found.message)][-2:] == ["A", "B"]


def test_thoughts_and_calls_that_are_cut_off_or_wrong_have_their_places(server: Running) -> None:
    for given, think, tokens in (
        *((True, "on", None), (False, "off", None), ("high", "high", None), (None, "", None), ("", "", None)),
        *((300, "on", 300), (1, "on", 1), (0, "off", 0), (-1, "on", -1)),
    ):
        found = read_chat(json.dumps(body(CHAT, think=given)).encode(), SamplingOptions())
        assert (found.think, found.think_tokens, type(found.think_tokens)) == (think, tokens, type(tokens))
    told = {"role": "assistant", "content": "4", "thinking": "2 + 2"}
    data = json.dumps({"model": "demo", "messages": [USER, told, USER]}).encode()
    assert read_chat(data, SamplingOptions()).messages[1].thought == "2 + 2"
    asked = read_chat(json.dumps(body(CHAT, tools=TOOLS)).encode(), SamplingOptions())
    reply = OllamaReply(asked, "demo")
    assert said(*reply.thinks(0, "hm"), "thinking") == "hm"
    answer = Answered("Four.", FinishReason.STOP, Stats(), [], "hm")
    assert reply.whole([answer])["message"] == {"role": "assistant", "content": "Four.", "thinking": "hm"}
    calls = [Call("now", '{"a": 1}', fault="arguments.a is too much"), Call("weather", '{"ci', cut=True)]
    made, end = reply.ends(0, Answered("", FinishReason.LENGTH, Stats(), []), calls)
    (call,) = made["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": {"a": 1}}
    assert end["done_reason"] == "length"
    assert end["warnings"] == [
        "a call of weather was cut off, and is left out",
        "a call of now: arguments.a is too much",
    ]
    (failed,) = reply.fails("no room")
    assert failed == {"error": "no room"}


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    *(
        (f"/api/{name}", {}, 404, "makes, copies and uploads no models")
        for name in ("create", "copy", "push", "blobs/x")
    ),
    (CHAT, {"model": "nope"}, 404, "there is no model 'nope'"),
    (GENERATE, {"model": "other:latest"}, 404, "there is no model"),
    (CHAT, {"model": None}, 400, "model"),
    (CHAT, {"messages": "Hi"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "images"),
    (GENERATE, {"images": ["aGk="]}, 400, "images"),
    (GENERATE, {"suffix": "}"}, 400, "suffix"),
    (GENERATE, {"raw": True, "system": "x"}, 400, "raw"),
    (GENERATE, {"prompt": 7}, 400, "prompt"),
    (CHAT, {"options": {"temperature": "hot"}}, 400, "options.temperature"),
    (CHAT, {"options": {"num_ctx": "large"}}, 400, "options.num_ctx"),
    (CHAT, {"options": {"repeat_penalty": 1.1, "repetition_penalty": 1.2}}, 400, "options.repetition_penalty"),
    (CHAT, {"options": []}, 400, "options"),
    (CHAT, {"format": "yaml"}, 400, "format"),
    (CHAT, {"format": 7}, 400, "format"),
    (CHAT, {"think": "hard"}, 400, "think"),
    (CHAT, {"think": -2}, 400, "think"),
    (CHAT, {"think": 1.5}, 400, "think"),
    (CHAT, {"think": True}, 400, '"demo" does not support thinking'),
    (CHAT, {"think": 64}, 400, '"demo" does not support thinking'),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 19_000}], "truncate": False}, 400, "too long"),
]


@pytest.mark.parametrize(("path", "wrong", "status", "said"), WRONG)
def test_what_cannot_be_answered_is_refused(
    server: Running, path: str, wrong: dict[str, Any], status: int, said: str
) -> None:
    server.refuses(body(path) | wrong, said, path, status=status)


def test_ollamas_client_chats(server: Running) -> None:
    ollama = pytest.importorskip("ollama")
    expected, options = lone(server.pair, most=8), {"temperature": 0, "num_predict": 8}
    messages = [{"role": "user", "content": STORY}]
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    with ollama.Client(f"http://127.0.0.1:{server.port}", headers=AUTHORIZATION) as client:
        assert client.chat("demo", messages, options=options).message.content == expected
        parts = [*client.chat("demo", messages, stream=True, options=options)]
        assert "".join(part.message.content for part in parts) == expected
        assert (parts[-1].done_reason, parts[-1].eval_count) == ("length", 8)
        assert client.generate("demo", STORY, options=options).response == expected
        assert (
            "".join(each.response for each in client.generate("demo", STORY, stream=True, options=options)) == expected
        )
        formed = client.chat("demo", messages, format=schema, options={"temperature": 0, "num_predict": 60})
        assert isinstance(json.loads(formed.message.content)["ok"], bool)
        question = [{"role": "user", "content": QUESTION}]
        (call,) = client.chat("demo", question, tools=TOOLS, options={"temperature": 0}).message.tool_calls
        assert call.function.name == "weather"
        with pytest.raises(ollama.ResponseError, match="there is no model 'nope'") as caught:
            client.chat("nope", messages)
    assert caught.value.status_code == 404
