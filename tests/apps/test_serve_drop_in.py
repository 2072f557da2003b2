"""`serve` in another server's place: other spellings of fields, other names of models, web pages, Codex's requests."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, KEY, PATHS, RESPONSES, STORY, USER, Running, asked, body, lone

# isort: split
import openai

from edgedecode import SessionOptions
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.metrics import Metrics
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from tests.apps.serving import read_items, text_of

SERVER = {"options": SessionOptions(context=256)}
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
SPELLINGS = [
    *((CHAT, {"response_format": each}) for each in FORMATS),
    *((CHAT, each) for each in OTHERS),
    *((RESPONSES, {"text": {"format": each}}) for each in FORMATS),
    *(("/v1/messages", each) for each in ({"output_config": {"format": FORMATS[1]}}, {"output_format": FORMATS[1]})),
    *(("/api/chat", {"format": each}) for each in (SCHEMA, "json")),
    *(("/api/generate", {"format": each}) for each in (SCHEMA, "json")),
    (CHAT, {"response_format": {"type": "json_object"}}),
]


@pytest.mark.parametrize(("path", "fields"), SPELLINGS, ids=str)
def test_every_spelling_of_a_form_is_followed(path: str, fields: dict[str, Any], server: Running) -> None:
    text = text_of(server.answer(body(path, EXTRACT, 60, **fields), path))
    assert json.loads(text) == {"age": 61, "job": "pilot"}


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
NEUTRAL: list[dict[str, Any]] = [
    *({"stop": ""}, {"stop": []}, {"stop": [""]}, {"stop": None}, {"seed": -1}, {"top_k": -1}, {"top_logprobs": 0}),
    {"no_such_field": None, "keep_alive": None, "service_tier": "flex", "client_metadata": {"a": "b"}},
    {"user": "u", "metadata": {"a": "b"}, "store": False, "prompt_cache_key": "k", "safety_identifier": "s"},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
    *({"repeat_penalty": 1}, {"logit_bias": None, "presence_penalty": None}),
]
IN_CHATS: list[dict[str, Any]] = [
    WEB_UI,
    {"logprobs": False, "n_predict": 6, "ignore_eos": False, "repetition_penalty": 1},
    {"verbosity": "medium", "prediction": {"type": "content", "content": "Seven"}},
    {"repeat_last_n": 0, "repeat_penalty": 1.5, "presence_penalty": 2},
    {"repeat_last_n": -1},
]


@pytest.mark.parametrize("path", PATHS)
def test_values_that_mean_nothing_change_nothing(path: str, server: Running) -> None:
    def text(**fields: object) -> str:
        return text_of(server.answer(body(path, "Once upon a time" if path == COMPLETIONS else STORY, **fields), path))

    plain = text()
    assert plain
    assert {text(**fields) for fields in (*NEUTRAL, *(IN_CHATS if path == CHAT else []))} == {plain}
    penalised = text(repeat_penalty=1.5)
    assert penalised == text(repetition_penalty=1.5) != plain
    assert path != CHAT or text(**WEB_UI | {"repeat_penalty": 1.5}) == penalised
    greedy = {text(temperature=2, **fields) for fields in ({"top_p": 0}, {"top_k": 1}, {"top_n_sigma": 1e-4})}
    assert greedy == {plain}, "the likeliest token"


@pytest.mark.parametrize(
    ("path", "fields"), [(CHAT, {"verbosity": "low"}), (RESPONSES, {"text": {"verbosity": "high"}})]
)
def test_verbosity_is_said_not_to_be_followed(path: str, fields: dict[str, Any], server: Running) -> None:
    server.answer(body(path, **fields), path)
    assert "verbosity was not followed" in server.note


@pytest.mark.parametrize("path", PATHS)
def test_overflow_is_said_in_words_that_clients_know(path: str, server: Running) -> None:
    error = server.refuses(body(path, "word " * 400), path=path)
    found = re.match(r"prompt is too long: (?:about )?(\d+) tokens > (\d+) maximum", error["message"])
    assert found is not None, error
    assert int(found[1]) > int(found[2]) == 255
    assert "this model's maximum context length is 256 tokens" in error["message"]
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.post(path.removeprefix("/v1"), body=body(path, "word " * 400), cast_to=object)
    assert refused.value.code == error["code"] == "context_length_exceeded"


def test_any_name_is_answered_and_repeated(server: Running) -> None:
    wanted = lone(server.pair, most=6)
    names = ("gpt-4o-mini", "meta-llama/Llama-3.2-1B:q4", "other@switch", "demo", "demo:latest", "demo@plain", "@plain")
    for name in names:
        reply = server.answer(body(CHAT, model=name))
        assert (reply["model"], text_of(reply)) == (name, wanted)
    assert server.answer(body(CHAT, model="@plain"))["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": 0,
    }
    for path in PATHS:
        assert server.answer(body(path, most=2, model=None), path)["model"] == "demo"
        stream = server.send("POST", path, body(path, most=2, model="davinci", stream=True)).text
        assert {*re.findall(r'"model":"(.*?)"', stream)} == {"davinci"}


def test_models_say_when_they_were_made_and_how_much_they_read(server: Running) -> None:
    made = int((BUNDLED_PACK / MANIFEST_NAME).stat().st_mtime)
    for model in server.client.models.list().data:
        found: dict[str, Any] = model.to_dict()
        assert found["created"] == made > 1_600_000_000
        assert found["context_length"] == found["max_model_len"] == found["meta"]["n_ctx"] == 256
        assert found == server.client.models.retrieve(model.id).to_dict()


# -- web pages ---------------------------------------------------------------------------------------------------------

AUTHORIZED = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


@pytest.fixture(scope="module")
def guarded(server: Running) -> Iterator[Running]:
    """A server that needs a key, and lets one other page use it."""
    with Running(server.pair, Limits(key=KEY, origins=(PAGE, "null"), most_nbytes=10_000)) as running:
        yield running


@pytest.mark.parametrize("origin", [PAGE, "null"])
def test_an_allowed_page_may_use_the_server(origin: str, guarded: Running) -> None:
    asks = guarded.send("OPTIONS", CHAT, Origin=origin, **PREFLIGHT)
    assert (asks.status, asks.headers["Access-Control-Allow-Origin"]) == (200, origin)
    assert "Origin" in asks.headers["Vary"]
    assert "POST" in asks.headers["Access-Control-Allow-Methods"]
    assert asks.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    large = b'"' + b"x" * 10_001 + b'"'
    replies = [
        *((200, guarded.send("POST", CHAT, asked(max_tokens=2), Origin=origin, **AUTHORIZED)),),
        *((200, guarded.send("POST", CHAT, asked(max_tokens=2, stream=True), Origin=origin, **AUTHORIZED)),),
        (401, guarded.send("POST", CHAT, asked(), Origin=origin)),
        (400, guarded.send("POST", CHAT, {}, Origin=origin, **AUTHORIZED)),
        (404, guarded.get("/nowhere", Origin=origin, **AUTHORIZED)),
        (405, guarded.send("OPTIONS", CHAT, Origin=origin, **AUTHORIZED)),
        (413, guarded.send("POST", CHAT, large, Origin=origin, **AUTHORIZED)),
        (421, guarded.get("/health", Origin=origin, Host="evil.example")),
    ]
    for status, reply in replies:
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (status, origin)
        assert reply.text


def test_a_failing_server_says_so_to_an_allowed_page(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metrics, "text", lambda *_: 1 / 0)
    reply = guarded.get("/metrics", Origin=PAGE, **AUTHORIZED)
    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (500, PAGE)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example", "https://chat.example.evil.example"])
def test_other_pages_stay_refused(origin: str, guarded: Running, server: Running) -> None:
    for running in (guarded, server):
        for method, more in (("OPTIONS", PREFLIGHT), ("POST", AUTHORIZED)):
            reply = running.send(method, CHAT, Origin=origin, **more)
            assert reply.status in (400, 403)
            assert reply.headers["Access-Control-Allow-Origin"] is None


def test_any_page_may_be_allowed(server: Running) -> None:
    page = {"Origin": "https://any.example"}
    with Running(server.pair, Limits(origins=("*",))) as running:
        reply = running.get("/v1/models", **page)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "*")
        assert running.get("/v1/models", **page, Host="evil.example").status == 421
        local = running.send("OPTIONS", CHAT, **page, **PREFLIGHT, **{"Access-Control-Request-Private-Network": "true"})
        assert local.headers["Access-Control-Allow-Private-Network"] == "true"


# -- Codex -------------------------------------------------------------------------------------------------------------


def message(role: str, kind: str, text: str, **more: object) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more}


SHELL: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
CODEX: dict[str, Any] = {
    "model": "demo",
    "instructions": "You are a coding agent.",
    "input": [
        message("developer", "input_text", "Be brief."),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAAA"},
        message("assistant", "output_text", "I look.", id="msg_1", status="completed", phase="commentary"),
        {"type": "function_call", "id": "f", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py","metadata":{"exit_code":0}}'},
        message("user", "input_text", STORY),
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs it.", "strict": False, "parameters": SHELL},
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
    before = server.count("edgedecode_notes_total")
    with Running(server.pair, options=SessionOptions(context=1024)) as running:
        reply = running.send("POST", RESPONSES, CODEX | {"max_output_tokens": 8})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert (reply.status, events[0]["type"], events[-1]["type"]) == (200, "response.created", "response.incomplete")
    note = reply.headers["Edgedecode-Note"]
    assert "tools of the types custom, local_shell, web_search were left out" in note
    assert "input items of the types reasoning were left out" in note
    assert "the reasoning effort was not followed" in note
    server.answer(body(RESPONSES, tools=[{"type": "web_search"}]), RESPONSES)
    assert server.note.startswith("tools of")
    assert server.count("edgedecode_notes_total") == before + 1
    server.answer(body(RESPONSES), RESPONSES)
    assert server.note == ""


def test_calls_of_tools_that_are_no_functions_are_read_as_calls() -> None:
    asked = read_items(
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "a", "output": "a.py"},
        {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
    )
    assert [(each.role, each.content) for each in (*asked.messages, asked.message)] == [
        ("assistant", '{"name": "local_shell", "arguments": {"type": "exec", "command": ["ls"]}}'),
        ("tool", "a.py"),
        ("assistant", '{"name": "apply_patch", "arguments": {"input": "*** Begin"}}'),
        ("tool", "done"),
    ]


@pytest.mark.parametrize(
    "kind", ["reasoning", "web_search_call", "image_generation_call", "tool_search_output", "mcp_list_tools"]
)
def test_items_that_other_servers_made_are_left_out_with_a_note(kind: str) -> None:
    asked = read_items({"role": "user", "content": "one"}, {"type": kind, "id": "x"}, USER)
    assert ([each.content for each in asked.messages], asked.message.content) == (["one"], "Hi")
    assert asked.notes == (f"input items of the types {kind} were left out",)
