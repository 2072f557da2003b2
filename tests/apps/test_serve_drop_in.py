"""`serve` in another server's place: other spellings of fields, other names of models, web pages, Codex's requests."""

import argparse
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

import openai

from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.command import command
from edgedecode.apps.serve.requests.responses import read_response
from tests.apps.test_serve import KEY, STORY, Running, asked, lone

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BASE: dict[str, dict[str, Any]] = {
    CHAT: asked(max_tokens=6),
    COMPLETIONS: {"model": "demo", "prompt": "Once", "max_tokens": 6, "temperature": 0},
    RESPONSES: {"model": "demo", "input": STORY, "max_output_tokens": 6, "temperature": 0},
}
PAGE = "https://chat.example"
EXTRACT = "Extract age, job as JSON.\nUma is 61 and works as a pilot."
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "job": {"enum": ["pilot", "baker"]}},
    "required": ["age", "job"],
    "additionalProperties": False,
}
GBNF = (
    'root ::= "{\\"age\\": " number ", \\"job\\": \\"" job "\\"}"\nnumber ::= [0-9] [0-9]\njob ::= "pilot" | "baker"\n'
)
LARK = 'start: "{\\"age\\": " NUMBER ", \\"job\\": \\"" ("pilot" | "baker") "\\"}"\nNUMBER: /[0-9][0-9]/\n'
REGEX = r'\{"age": [0-9][0-9], "job": "(pilot|baker)"\}'
JSON_TEXT = '{"age": 61, "job": "pilot"}'


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), parallel=2, options=SessionOptions(context=256))
        yield running
        running.close()


@pytest.fixture(scope="module")
def guarded(server: Running) -> Iterator[Running]:
    """A server that needs a key, and lets one other page use it."""
    running = Running(server.pair, Limits(key=KEY, origins=(PAGE, "null"), strict_model=True, most_nbytes=10_000))
    yield running
    running.close()


@dataclass(frozen=True)
class Sent:
    """A reply as it was sent. headers: None for a missing one."""

    status: int
    headers: Mapping[str, Any]
    text: str


def send(server: Running, method: str, path: str, body: object = None, **headers: str) -> Sent:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        return Sent(reply.status, reply.headers, reply.read().decode())  # type: ignore[arg-type]


def extracted(server: Running, path: str, fields: dict[str, Any]) -> str:
    """Return the answer to `EXTRACT`."""
    if path == CHAT:
        body = asked(messages=[{"role": "user", "content": EXTRACT}], max_tokens=60, **fields)
        status, reply = server.post(body)
        assert status == 200, reply
        return str(reply["choices"][0]["message"]["content"])
    status, reply = server.post(BASE[path] | {"input": EXTRACT, "max_output_tokens": 60, **fields}, path)
    assert status == 200, reply
    return str(reply["output"][0]["content"][0]["text"])


FORMATS: list[dict[str, Any]] = [
    {"type": "json_object", "schema": SCHEMA},
    {"type": "json_schema", "schema": SCHEMA, "name": "person"},
    {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    {"type": "json_schema", "json_schema": SCHEMA},
    {"type": "json_object", "json_schema": {"schema": SCHEMA}},
    {"type": "regex", "pattern": REGEX},
    {"type": "grammar", "grammar": GBNF},
]
OTHERS: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA), "response_format": {"type": "text"}, "guided_regex": None, "grammar": ""},
    {"guided_json": SCHEMA, "response_format": {"type": "json_object", "schema": SCHEMA}},
    {"guided_regex": REGEX, "guided_decoding_backend": "auto"},
    {"guided_choice": [JSON_TEXT, "neither"]},
    {"guided_grammar": LARK},
    {"grammar": LARK},
    {"grammar": GBNF},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": REGEX}},
    {"structured_outputs": {"choice": [JSON_TEXT, "neither"]}},
    {"structured_outputs": {"grammar": LARK}},
]


@pytest.mark.parametrize("fields", [*({"response_format": each} for each in FORMATS), *OTHERS], ids=json.dumps)
def test_every_spelling_of_a_form_is_followed(fields: dict[str, Any], server: Running) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    found = json.loads(extracted(server, CHAT, fields))
    assert {*found} == {"age", "job"}
    assert (found["age"], found["job"]) == (61, "pilot")


@pytest.mark.parametrize("form", FORMATS, ids=json.dumps)
def test_responses_know_the_same_formats(form: dict[str, Any], server: Running) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    assert json.loads(extracted(server, RESPONSES, {"text": {"format": form}})) == {"age": 61, "job": "pilot"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json and guided_regex exclude each other"),
        ({"response_format": {"type": "json_object"}, "grammar": LARK}, "response_format and grammar exclude each"),
        ({"structured_outputs": {"json": SCHEMA, "choice": ["a"]}}, "structured_outputs.json and structured_outputs."),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.schema is missing",
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA, "json_schema": {"schema": {}}}}, "differ"),
        ({"response_format": {"type": "regex"}}, "response_format.pattern is missing"),
        ({"guided_json": "{"}, "guided_json is not JSON"),
        ({"guided_choice": []}, "guided_choice"),
        ({"grammar": "root ::= ("}, "grammar: the gbnf is not supported"),
        ({"guided_regex": "(["}, "guided_regex: the regex is not supported"),
        ({"guided_choice": [""]}, "guided_choice: the regex is empty"),
        ({"structured_outputs": {"grammar": "start: nope"}}, "structured_outputs.grammar: the lark is not supported"),
        ({"response_format": {"type": "regex", "pattern": "*"}}, "response_format.pattern: the regex is not supported"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"max_tokens": 3, "n_predict": 4}, "max_tokens and n_predict differ"),
        ({"ignore_eos": True, "grammar": LARK, "max_tokens": 3}, "ignore_eos contradicts a form"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, ".schema is no JSON Schema"),
    ],
)
def test_forms_that_contradict_or_lack_something_are_refused(
    fields: dict[str, Any], said: str, server: Running
) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    status, reply = server.post(asked(**fields))
    assert (status, said in reply["error"]["message"]) == (400, True), reply
    assert reply["error"]["param"] is None or reply["error"]["param"].split(".")[0] in fields
    assert "start: " not in reply["error"]["message"], "an excerpt of what this server made of it"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_values_that_mean_nothing_change_nothing(path: str, server: Running) -> None:
    def text(fields: dict[str, Any]) -> object:
        status, reply = server.post(BASE[path] | fields, path)
        assert status == 200, reply
        if path == RESPONSES:
            return reply["output"][0]["content"][0]["text"]
        return reply["choices"][0].get("text") or reply["choices"][0]["message"]["content"]

    plain = text({})
    for fields in ({"stop": ""}, {"stop": []}, {"stop": [""]}, {"stop": None}, {"seed": -1}, {"top_k": -1}):
        assert text(fields) == plain
    assert (
        text({"no_such_field": None, "keep_alive": None, "service_tier": "flex", "client_metadata": {"a": "b"}})
        == plain
    )
    assert text({"top_logprobs": 0}) == plain
    if path != RESPONSES:
        assert text({"logprobs": False, "n_predict": 6, "ignore_eos": False, "repetition_penalty": 1}) == plain


WEB_UI: dict[str, Any] = {
    "samplers": "edkypmxt",
    **dict.fromkeys(("dynatemp_range", "xtc_probability", "dry_multiplier", "frequency_penalty"), 0),
    "dynatemp_exponent": 1,
    "typical_p": 1,
    "xtc_threshold": 0.1,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "timings_per_token": True,
    "cache_prompt": True,
    "reasoning_format": "auto",
    "top_n_sigma": -1,
}
"""What the page of llama.cpp sends besides common fields."""


def test_settings_of_samplers_that_are_off_change_nothing(server: Running) -> None:
    plain = server.post(BASE[CHAT])[1]["choices"]
    more = {"verbosity": "medium", "prediction": {"type": "content", "content": "Seven"}}
    for fields in (WEB_UI, more, {"repeat_last_n": 0, "repeat_penalty": 1.5, "presence_penalty": 2}):
        assert server.post(BASE[CHAT] | fields)[1]["choices"] == plain
    penalised = server.post(BASE[CHAT] | WEB_UI | {"repeat_penalty": 1.5})[1]["choices"]
    assert penalised != plain


@pytest.mark.parametrize(
    ("path", "fields"), [(CHAT, {"verbosity": "low"}), (RESPONSES, {"text": {"verbosity": "high"}})]
)
def test_verbosity_is_said_not_to_be_followed(path: str, fields: dict[str, Any], server: Running) -> None:
    reply = send(server, "POST", path, BASE[path] | fields)
    assert (reply.status, "verbosity was not followed" in reply.headers["Edgedecode-Note"]) == (200, True)


def test_no_limit_answers_to_the_end_of_the_context(server: Running) -> None:
    for fields in (
        {"max_tokens": -1},
        {"n_predict": -1},
        {"max_completion_tokens": (1 << 31) - 1},
        {"max_tokens": 10**12},
    ):
        reply = server.post(asked(ignore_eos=True, **fields))[1]
        assert (reply["choices"][0]["finish_reason"], reply["usage"]["total_tokens"]) == ("length", 256)
    reply = server.post({"input": STORY, "temperature": 0, "max_output_tokens": -1, "ignore_eos": True}, RESPONSES)[1]
    assert (reply["status"], reply["usage"]["total_tokens"]) == ("incomplete", 256)


def test_a_random_seed_is_random_though_the_server_has_one(server: Running) -> None:
    running = Running(server.pair, Limits(), options=SessionOptions(seed=7))
    try:
        texts = [
            [
                running.post(asked(temperature=2, max_tokens=12, **seed))[1]["choices"][0]["message"]["content"]
                for _ in "ab"
            ]
            for seed in ({}, {"seed": -1})
        ]
    finally:
        running.close()
    assert (len({*texts[0]}), len({*texts[1]})) == (1, 2)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_overflow_is_said_in_words_that_clients_know(path: str, server: Running) -> None:
    long = "word " * 400
    client = server.client
    ask: dict[str, Any] = {
        CHAT: lambda: client.chat.completions.create(model="demo", messages=[{"role": "user", "content": long}]),
        COMPLETIONS: lambda: client.completions.create(model="demo", prompt=long),
        RESPONSES: lambda: client.responses.create(model="demo", input=long),
    }
    with pytest.raises(openai.BadRequestError) as refused:
        ask[path]()
    assert refused.value.code == "context_length_exceeded"
    assert isinstance(refused.value.body, dict)
    message = refused.value.body["message"]
    found = re.match(r"prompt is too long: (?:over )?(\d+) tokens > (\d+) maximum", message)
    assert found is not None, message
    assert int(found[1]) > int(found[2]) == 255
    assert "this model's maximum context length is 256 tokens" in message


def test_any_name_is_answered_and_repeated(server: Running) -> None:
    wanted = lone(server.pair, STORY, seed=None, temperature=0.0, most=6)
    for name in (
        "gpt-4o-mini",
        "meta-llama/Llama-3.2-1B:q4",
        "other@switch",
        "demo",
        "demo:latest",
        "demo@plain",
        "@plain",
    ):
        status, reply = server.post(BASE[CHAT] | {"model": name})
        assert (status, reply["model"]) == (200, name), reply
        assert reply["choices"][0]["message"]["content"] == wanted
    assert server.post(BASE[CHAT] | {"model": "@plain"})[1]["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": 0,
    }
    for body, path in ((BASE[CHAT] | {"model": None}, CHAT), ({"input": STORY, "max_output_tokens": 2}, RESPONSES)):
        status, reply = server.post(body, path)
        assert (status, reply["model"]) == (200, "demo")
    assert server.client.responses.create(model="gpt-5", input=STORY, max_output_tokens=2).model == "gpt-5"
    stream = server.client.completions.create(model="davinci", prompt="Once", max_tokens=2, stream=True)
    assert {part.model for part in stream} == {"davinci"}
    for name in ("demo:other", "demo@fast", ":other"):
        status, reply = server.post(BASE[CHAT] | {"model": name})
        assert (status, reply["error"]["code"]) == (404, "model_not_found")


def test_a_strict_server_knows_its_own_models_only(guarded: Running) -> None:
    assert {guarded.post(BASE[CHAT] | {"model": name})[0] for name in ("gpt-4o", "demo:latest")} == {404}
    assert guarded.post(BASE[CHAT] | {"model": "demo@plain"})[0] == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/responses", "did you mean /v1/responses?"),
        ("/models", "did you mean /v1/models?"),
        ("/v1/embeddings", "this server has /v1/models, /v1/chat/completions, /v1/completions, /v1/responses"),
    ],
)
def test_a_path_that_there_is_not_gets_the_nearest(path: str, said: str, server: Running) -> None:
    status, reply = server.post({}, path)
    assert (status, said in reply["error"]["message"]) == (404, True), reply


def test_models_say_when_they_were_made_and_how_much_they_read(server: Running) -> None:
    made = int((BUNDLED_PACK / MANIFEST_NAME).stat().st_mtime)
    for model in server.client.models.list().data:
        found = model.to_dict()
        assert found["created"] == made > 1_600_000_000
        assert found["context_length"] == found["max_model_len"] == found["meta"]["n_ctx"] == 256  # type: ignore[index]
        assert found == server.client.models.retrieve(model.id).to_dict()
    assert send(server, "GET", "/v1/models/gpt-4o").status == 404


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize("origin", [PAGE, "null"])
def test_an_allowed_page_may_use_the_server(origin: str, guarded: Running) -> None:
    asks = send(guarded, "OPTIONS", CHAT, Origin=origin, **PREFLIGHT)
    assert (asks.status, asks.headers["Access-Control-Allow-Origin"], asks.headers["Vary"]) == (204, origin, "Origin")
    assert "POST" in asks.headers["Access-Control-Allow-Methods"]
    assert asks.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    key = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    for stream in (False, True):
        reply = send(guarded, "POST", CHAT, asked(max_tokens=2, stream=stream), Origin=origin, **key)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, origin)
        assert reply.text
    refusals = {
        401: send(guarded, "POST", CHAT, asked(), Origin=origin),
        400: send(guarded, "POST", CHAT, {}, Origin=origin, **key),
        404: send(guarded, "GET", "/nowhere", Origin=origin, **key),
        405: send(guarded, "OPTIONS", CHAT, Origin=origin, **key),
        413: send(guarded, "POST", CHAT, "x" * 10_001, Origin=origin, **key),
        421: send(guarded, "GET", "/health", Origin=origin, Host="evil.example"),
    }
    for status, reply in refusals.items():
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (status, origin)


def test_a_failing_server_says_so_to_an_allowed_page(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(guarded.service), "running", property(lambda _: 1 / 0))
    key = {"Authorization": f"Bearer {KEY}"}
    reply = send(guarded, "GET", "/metrics", Origin=PAGE, **key)
    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (500, PAGE)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example", "https://chat.example.evil.example"])
def test_other_pages_stay_refused(origin: str, guarded: Running, server: Running) -> None:
    for running in (guarded, server):
        for method, more in (("OPTIONS", PREFLIGHT), ("POST", {"Authorization": f"Bearer {KEY}"})):
            reply = send(running, method, CHAT, Origin=origin, **more)
            assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (403, None)


def test_any_page_may_be_allowed(server: Running) -> None:
    running = Running(server.pair, Limits(origins=("*",)))
    try:
        reply = send(running, "GET", "/v1/models", Origin="https://any.example")
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "*")
        assert send(running, "GET", "/v1/models", Origin="https://any.example", Host="evil.example").status == 421
        local = send(
            running,
            "OPTIONS",
            CHAT,
            Origin="https://any.example",
            **PREFLIGHT,
            **{"Access-Control-Request-Private-Network": "true"},
        )
        assert local.headers["Access-Control-Allow-Private-Network"] == "true"
    finally:
        running.close()


def test_an_origin_is_what_a_browser_sends(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    given = ["https://Chat.example:443/", "http://a.b:80", "http://localhost:3000", "null", "*", "app://obsidian.md"]
    wanted = ["https://chat.example", "http://a.b", *given[2:]]
    assert parser.parse_args([f"--allow-origin={each}" for each in given]).allow_origin == wanted
    for wrong in ("chat.example", "https://chat.example/page", "https://*.chat.example", "https://", ""):
        with pytest.raises(SystemExit):
            parser.parse_args(["--allow-origin", wrong])
        assert "is no origin: give scheme and host" in capsys.readouterr().err


CODEX: dict[str, Any] = {
    "model": "demo",
    "instructions": "You are a coding agent.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be brief."}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAAA"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look at the file.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "shell",
            "arguments": '{"command":["ls"]}',
            "call_id": "call_1",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py","metadata":{"exit_code":0}}'},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": STORY}]},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a shell command and returns its output.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "array", "items": {"type": "string"}},
                    "workdir": {"type": "string"},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": True},
        {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": {"type": "grammar"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-aa",
    "text": {"verbosity": "medium"},
    "service_tier": "priority",
    "client_metadata": {"x-codex-installation-id": "7"},
}


def test_what_codex_sends_is_answered(server: Running) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    before = notes(server)
    running = Running(server.pair, Limits(), options=SessionOptions(context=1024))
    try:
        reply = send(running, "POST", RESPONSES, CODEX | {"max_output_tokens": 8})
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    finally:
        running.close()
    assert (reply.status, events[0]["type"], events[-1]["type"]) == (200, "response.created", "response.incomplete")
    note = reply.headers["Edgedecode-Note"]
    assert "tools of the types custom, local_shell, web_search were left out" in note
    assert "input items of the types reasoning were left out" in note
    assert "the reasoning effort was not followed" in note
    assert notes(server) == before
    body = BASE[RESPONSES] | {"tools": [{"type": "web_search"}]}
    assert server.client.responses.with_raw_response.create(**body).headers["Edgedecode-Note"].startswith("tools of")
    assert notes(server) == before + 1
    assert send(server, "POST", RESPONSES, BASE[RESPONSES]).headers["Edgedecode-Note"] is None


def test_calls_of_tools_that_are_no_functions_are_read_as_calls() -> None:
    items = [
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "a", "output": "a.py"},
        {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
    ]
    asked = read_response(json.dumps({"input": items}).encode(), SamplingOptions())
    shell, result, patch = asked.messages
    assert (shell.role, result.role, patch.role) == ("assistant", "tool", "assistant")
    assert "local_shell" in shell.content
    assert '"ls"' in shell.content
    assert result.content == "a.py"
    assert "*** Begin" in patch.content
    assert asked.message.content == "done"


@pytest.mark.parametrize(
    "kind", ["reasoning", "web_search_call", "image_generation_call", "tool_search_output", "mcp_list_tools"]
)
def test_items_that_other_servers_made_are_left_out_with_a_note(kind: str) -> None:
    items = [{"role": "user", "content": "one"}, {"type": kind, "id": "x"}, {"role": "user", "content": "two"}]
    asked = read_response(json.dumps({"input": items}).encode(), SamplingOptions())
    assert ([each.content for each in asked.messages], asked.message.content) == (["one"], "two")
    assert asked.notes == (f"input items of the types {kind} were left out",)


def notes(server: Running) -> int:
    return int(send(server, "GET", "/metrics").text.split("\nedgedecode_notes_total ")[1].split()[0])
