"""`serve`: what a request may not have is refused by the field's name, in one line, and the next is answered."""

import json
import socket
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, FLAT, KEY, PATHS, RESPONSES, TOOLS, WEATHER, Running, asked, body

# isort: split
from edgedecode import SessionOptions
from edgedecode.apps.serve.guards import Limits

SERVER = {"limits": Limits(key=KEY, most_nbytes=100_000, seconds=1.0), "options": SessionOptions(context=256)}
LARK = 'start: "{\\"age\\": " NUMBER "}"\nNUMBER: /[0-9][0-9]/\n'
SCHEMA = "response_format.json_schema.schema"
PANICS = {"type": "string", "pattern": ["x" * 97 + "æ" * 9]}
"""In whose refusal llguidance 1.9 cuts a character in two."""
PARTS = [{"type": "image_url"}]
FUNCTION = {"type": "function", "function": {"name": "f"}}
CALL = {"role": "assistant", "content": None, "function_call": {"name": "w", "arguments": "{}"}}


def function(name: str, **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def form(**fields: object) -> dict[str, Any]:
    return {"response_format": fields}


WHOLE: list[tuple[object, str, int, str | None, str]] = [
    (b"", CHAT, 400, None, "not JSON"),
    (b"{", CHAT, 400, None, "not JSON"),
    (b"\xff\xfe", CHAT, 400, None, "not JSON"),
    (b"[" * 50_000, CHAT, 400, None, "JSON"),
    (b"[]", CHAT, 400, None, "not a JSON object"),
    (b'{"model": "demo", "model": "demo"}', CHAT, 400, None, "appears twice"),
    (b"x" * 100_001, CHAT, 413, None, "larger than"),
    ({}, CHAT, 400, "messages", "messages is missing"),
    ({}, COMPLETIONS, 400, "prompt", "prompt is missing"),
    ({}, RESPONSES, 400, "input", "input is missing"),
    ({"input": "x", "encoding_format": "int8"}, "/v1/embeddings", 400, "encoding_format", "must be one of"),
    ({"input": "x", "dimensions": 0}, "/v1/embeddings", 400, "dimensions", ">= 1"),
    (asked(model="demo:other"), CHAT, 404, "model", "there is no model"),
    (asked(model="demo:"), CHAT, 404, "model", "there is no model"),
    (asked(model="demo@fast"), CHAT, 404, "model", "there is no model"),
    (asked(model="@fast"), CHAT, 404, "model", "there is no model"),
    (body(RESPONSES, model=":other"), RESPONSES, 404, "model", "there is no model"),
]


@pytest.mark.parametrize(("given", "path", "status", "param", "said"), WHOLE)
def test_what_is_no_request_is_refused(
    given: object, path: str, status: int, param: str | None, said: str, server: Running
) -> None:
    assert server.refuses(given, said, path, status=status)["param"] == param
    server.answer(asked(max_tokens=2))


EVERYWHERE: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": 7}, "model", "model"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"temperature": -1, "stream": True}, "temperature", "temperature"),
    ({"temperature": "hot"}, "temperature", "expected float"),
    ({"top_p": -0.1}, "top_p", "top_p"),
    ({"seed": -2}, "seed", "seed"),
    ({"seed": 1 << 70}, "seed", "seed"),
    ({"stop": ["a"] * 17}, "stop", "stop"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "<= 2"),
    ({"presence_penalty": "much"}, "presence_penalty", "expected float"),
    ({"repetition_penalty": 0}, "repetition_penalty", ">= 1e-06"),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repetition_penalty", "differ: give one of them"),
    ({"logit_bias": {"5": -100.5}}, "logit_bias.5", ">= -100"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "the key 'the': give each token's id once, as digits"),
    ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias", "the key '05'"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "the key '-1'"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "the key '999"),
    ({"logit_bias": [[5, 1], [5, 2]]}, "logit_bias", "the key '5'"),
    ({"logit_bias": [[5, True]]}, "logit_bias", "of id 5 is true: give a number, or false for never"),
    ({"logit_bias": [[5]]}, "logit_bias[0]", "length 2"),
    ({"logit_bias": {"8192": 1}}, "logit_bias", "the id 8192, and the vocabulary's ids are 0 to 8191"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "param", "said"), EVERYWHERE, ids=lambda each: str(each)[:60])
def test_a_wrong_value_is_refused_by_its_name(
    fields: dict[str, Any], param: str, said: str, path: str, server: Running
) -> None:
    assert server.refuses(body(path) | fields, said, path)["param"] == param


NAMED = {"type": "function", "function": {"name": "g"}}
IN_CHATS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "messages is empty: give one or more"),
    ({"messages": "hi"}, "messages", "messages"),
    ({"messages": [{"role": 1}]}, "messages[0].role", "role"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0]", "role 'king'"),
    ({"messages": [{"role": "user", "content": PARTS}]}, "messages[0]", "image_url"),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, None, "context"),
    ({"messages": [CALL, {"role": "user", "content": "x"}]}, "messages[0].function_call", "function_call"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
    ({"max_tokens": -2}, "max_tokens", "max_tokens"),
    ({"max_tokens": 3, "n_predict": 4}, "max_tokens", "max_tokens and n_predict differ"),
    ({"max_completion_tokens": 3}, "max_tokens", "max_tokens and max_completion_tokens differ"),
    ({"n": 129}, "n", "n"),
    ({"temprature": 1}, None, "did you mean temperature?"),
    ({"functions": [{"name": "f"}]}, "functions", "functions is not supported by this server: give tools"),
    ({"modalities": ["text", "audio"]}, "modalities", "modalities is not supported"),
    ({"web_search_options": {}}, "web_search_options", "web_search_options is not supported"),
    ({"samplers": "kt"}, "samplers", "samplers is not supported"),
    ({"min_tokens": 5}, "min_tokens", "min_tokens is not supported"),
    ({"length_penalty": True}, "length_penalty", "length_penalty is not supported"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_whitespace_pattern is not supported"),
    ({"verbosity": "loud"}, "verbosity", "verbosity must be one of low, medium, high"),
    ({"verbosity": ""}, "verbosity", "verbosity must be one of low, medium, high"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "reasoning_effort must be one of off, on, "),
    ({"truncation": "middle"}, "truncation", "truncation must be one of auto, disabled"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream"),
    ({"chat_template_kwargs": {"colour": 1}}, "chat_template_kwargs", "does not read 'colour'"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "set by the conversation"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs", "chat_template_kwargs"),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "top_logprobs"),
    ({"logprobs": 3}, "logprobs", "logprobs"),
    ({"logprobs": True, "model": "demo@switch"}, None, "leave out switching"),
    ({"logprobs": True, "model": "demo@switch", "stream": True}, None, "leave out switching"),
    # what answers follow
    (form(type="xml"), "response_format.type", "response_format.type must be one of text, json_object"),
    (form(type="json_schema"), "response_format.schema", "response_format.schema is missing"),
    (form(type="json_schema", json_schema={"name": "x"}), "response_format.schema", "schema is missing"),
    (form(type="json_schema", json_schema={"schema": {"not": {}}, "strict": True}), f"{SCHEMA}.not", "not cannot"),
    (form(type="json_schema", json_schema={"schema": False}), SCHEMA, ".schema is no JSON Schema"),
    (
        form(type="json_schema", json_schema={"schema": PANICS, "strict": True}),
        f"{SCHEMA}.pattern",
        "is not a value of pattern",
    ),
    (form(type="json_object", schema=WEATHER, json_schema={"schema": {}}), "response_format.schema", "differ"),
    (form(type="json_object") | {"model": "demo@switch"}, None, "leave out switching"),
    (form(type="json_object") | {"grammar": LARK}, "response_format", "response_format and grammar exclude each"),
    (form(type="regex"), "response_format.pattern", "response_format.pattern is missing"),
    (form(type="regex", pattern="*"), "response_format.pattern", "the regex is not supported"),
    ({"guided_json": WEATHER, "guided_regex": "a"}, "guided_json", "guided_json and guided_regex exclude each other"),
    ({"guided_json": "{"}, "guided_json", "guided_json is not JSON"),
    ({"guided_json": '{"type": "null", "type": "null"}'}, "guided_json", "the key 'type' appears twice"),
    ({"guided_choice": []}, "guided_choice", "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice", "guided_choice: the regex is empty"),
    ({"guided_regex": "(["}, "guided_regex", "guided_regex: the regex is not supported"),
    ({"grammar": "root ::= ("}, "grammar", "grammar: the gbnf is not supported"),
    ({"structured_outputs": {"grammar": "start: nope"}}, "structured_outputs.grammar", "the lark is not supported"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "structural_tag"),
    ({"structured_outputs": {"json": WEATHER, "choice": ["a"]}}, "structured_outputs.json", "exclude each other"),
    ({"ignore_eos": True, "grammar": LARK, "max_tokens": 3}, "ignore_eos", "ignore_eos contradicts a form"),
    # functions
    ({"tools": "x"}, "tools", "tools"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "tools[0].type is missing"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "is no function"),
    ({"tools": [function("a b")]}, "tools[0]", "use up to 128 letters"),
    ({"tools": [function("<|im_end|>")]}, "tools[0]", "use up to 128 letters"),
    ({"tools": [FUNCTION] * 2}, "tools", "two functions of one name"),
    ({"tools": [function(f"f{number}") for number in range(129)]}, "tools", "the most is 128"),
    ({"tools": [FUNCTION], "tool_choice": "sometimes"}, "tool_choice", "must be none, auto, required"),
    ({"tools": [FUNCTION], "tool_choice": NAMED}, "tool_choice", "names no function"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "names no function"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "names no function"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "auto", "mode": "any"}}, "tool_choice.mode", "auto or required"),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "auto", "allowed_tools": {"mode": "any"}}},
        "tool_choice.allowed_tools.mode",
        "auto or required",
    ),
    ({"tools": [FUNCTION], "tool_choice": FUNCTION | {"type": "custom"}}, "tool_choice", "names no function"),
    ({"tools": [function("f", parameters={"not": {}}, strict=True)]}, "tools[0].function.parameters.not", "not cannot"),
    ({"tools": TOOLS, "guided_regex": "a+"}, "tools", "go with a JSON Schema only"),
    ({"tools": TOOLS, "model": "demo@switch"}, None, "leave out switching"),
]
IN_COMPLETIONS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": []}, "prompt", "prompt"),
    ({"prompt": [[]]}, "prompt[0]", "prompt[0] is empty"),
    ({"prompt": ["a", ""]}, "prompt[1]", "prompt[1] is empty"),
    ({"prompt": ""}, "prompt", "prompt is empty"),
    ({"prompt": ["a", 1]}, "prompt", "a list of texts, or a list of lists"),
    ({"prompt": [[1], 2]}, "prompt", "a list of texts, or a list of lists"),
    ({"prompt": [["a"]]}, "prompt[0][0]", "prompt[0][0]"),
    ({"prompt": ["a"] * 2049}, "prompt", "the most is 2048"),
    ({"prompt": [1, 999_999]}, "prompt", "token id 999999 is not in the vocabulary"),
    ({"prompt": [[1], [-1]], "echo": True, "logprobs": 1}, "prompt", "token id -1 is not in the vocabulary"),
    ({"prompt": [1 << 70], "max_tokens": 0}, "prompt", "is not in the vocabulary"),
    ({"suffix": "b"}, "suffix", "no tokens to fill in with"),
    ({"best_of": 3}, "best_of", "best_of is not supported"),
    ({"n": 2, "best_of": 3}, "best_of", "best_of is not supported"),
    ({"max_tokens": -2}, "max_tokens", "max_tokens"),
    ({"echo": True, "stream": True, "return_rounds": True}, "return_rounds", "return_rounds"),
    ({"echo": 1}, "echo", "echo"),
    ({"messages": []}, None, "unknown field 'messages'"),
    ({"logprobs": 21}, "logprobs", "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs", "give the number as logprobs"),
    ({"tools": TOOLS}, "tools", "belong to chat completions"),
]
NO_ITEM = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}]
CUSTOM = {"type": "custom", "name": "a"}
IN_RESPONSES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"input": None}, "input", "input"),
    ({"input": 7}, "input", "input is '7'"),
    ({"input": [7]}, "input[0]", "input[0] is '7'"),
    ({"input": [{"type": "compaction"}]}, "input[0]", "input[0] is of type 'compaction'"),
    ({"input": NO_ITEM}, "input[1]", "input[1] refers to the item 'msg_1'"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]", "this server reads text only"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "does not have 'resp_1'"),
    ({"conversation": "conv_1"}, "conversation", "conversation is not supported"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
    ({"max_output_tokns": 3}, None, "did you mean max_output_tokens?"),
    ({"n": 2}, "n", "n is not supported"),
    ({"max_tokens": 3}, "max_tokens", "max_tokens is not supported"),
    ({"response_format": {"type": "text"}}, "response_format", "response_format is not supported"),
    ({"truncation": "middle"}, "truncation", "truncation must be"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "text.verbosity must be"),
    ({"text": {"format": "json"}}, "text.format", "text.format is 'json'"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text.format.type must be"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "text.format.schema is missing"),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs include"),
    ({"include": ["everything"]}, "include", "include has 'everything'"),
    ({"include": "all"}, "include", "include is 'all'"),
    ({"logprobs": True}, "logprobs", "logprobs is not supported"),
    ({"tools": [{"type": "function", "name": 7}]}, "tools[0].name", "tools[0].name"),
    ({"tools": [{"name": "weather"}]}, "tools[0].type", "tools[0].type is missing"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": FLAT, "tool_choice": {"type": "web_search"}}, "tool_choice", "tool_choice names no function"),
    ({"tools": [CUSTOM, FLAT[0] | {"name": "?"}]}, "tools[1]", "tools[1] has the name"),
]
ROWS = [
    *((CHAT, *row) for row in IN_CHATS),
    *((COMPLETIONS, *row) for row in IN_COMPLETIONS),
    *((RESPONSES, *row) for row in IN_RESPONSES),
]


@pytest.mark.parametrize(("path", "fields", "param", "said"), ROWS, ids=lambda each: str(each)[:60])
def test_what_is_not_offered_is_refused(
    path: str, fields: dict[str, Any], param: str | None, said: str, server: Running
) -> None:
    error = server.refuses(body(path) | fields, said, path)
    assert error["param"] == param
    assert "start: " not in error["message"], "an excerpt of what this server made of it"


def form_of(reply: Any) -> str:
    """Return whose form an error has."""
    error = reply["error"]
    if isinstance(error, str):
        return "Ollama's"
    fields = {*reply} | {*error}
    forms = {"OpenAI's": {"error", "message", "type", "param", "code"}, "Anthropic's": {"error", "message", "type"}}
    forms["llama-server's"] = {"error", "message", "type", "code"}
    (found,) = [name for name, has in forms.items() if has == fields]
    return found


APIS = {
    CHAT: "OpenAI's",
    RESPONSES: "OpenAI's",
    "/v1/embeddings": "OpenAI's",
    "/v1/messages": "Anthropic's",
    "/v1/messages/count_tokens": "Anthropic's",
    "/api/chat": "Ollama's",
    "/api/pull": "Ollama's",
    "/completion": "llama-server's",
    "/apply-template": "llama-server's",
}
in_each_api = pytest.mark.parametrize("path", APIS)


@pytest.mark.parametrize("headers", [{"Host": "localhost:1"}, {"Authorization": f"bearer {KEY}"}], ids=str)
def test_other_ports_and_spellings_are_taken(headers: dict[str, str], server: Running) -> None:
    assert server.post(asked(max_tokens=2), **headers)[0] == 200


@in_each_api
@pytest.mark.parametrize(
    ("headers", "given", "status"),
    [
        ({"Host": "evil.example"}, {}, 421),
        ({"Host": "evil.example:80"}, {}, 421),
        ({"Origin": "https://evil.example"}, {}, 403),
        ({"Origin": "null"}, {}, 403),
        ({"Authorization": "Bearer wrong"}, {}, 401),
        ({"Authorization": ""}, {}, 401),
        ({}, b"x" * 100_001, 413),
        ({}, b'{"model": "demo", "mess', 400),
        ({}, b"[]", 400),
        ({}, {"model": 7}, 400),
    ],
    ids=lambda each: str(each)[:40],
)
def test_an_error_has_the_form_of_its_api(
    path: str, headers: dict[str, str], given: object, status: int, server: Running
) -> None:
    found, reply = server.post(given, path, **headers)
    assert (found, form_of(reply)) == (status, APIS[path]), reply


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/health", 405, "is not allowed"),
        ("/v1/chat/completion", 404, "did you mean /v1/chat/completions?"),
        ("/v1/v1/responses", 404, "did you mean /v1/responses?"),
        ("/v1/model", 404, "did you mean /v1/models?"),
        ("/v1/audio", 404, "this server has /v1/models, /v1/chat/completions, /v1/completions, /v1/responses"),
    ],
)
def test_other_paths_and_methods_are_refused(path: str, status: int, said: str, server: Running) -> None:
    server.refuses({}, said, path, status=status)
    reply = server.send("DELETE", RESPONSES, Authorization=f"Bearer {KEY}")
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")


@in_each_api
def test_a_body_that_does_not_arrive_is_given_up(path: str, server: Running) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 50\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(f"{head}{{".encode())
        with connection.makefile("rb") as reply:
            data = reply.read()  # the server closes it
    assert data.startswith(b"HTTP/1.1 408")
    assert form_of(json.loads(data.partition(b"\r\n\r\n")[2])) == APIS[path]
