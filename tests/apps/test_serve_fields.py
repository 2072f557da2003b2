"""`serve`: nested bodies, the end of the context, answers that fail in the middle, and sampling as in sessions."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, FLAT, PATHS, QUESTION, RESPONSES, STORY, Running, asked, body, text_of

# isort: split
from jsonschema import Draft202012Validator

from edgedecode import CapabilityError, InputError, Pair, SamplingOptions, SessionDetails, SessionOptions
from edgedecode.apps.serve import running as running_module
from edgedecode.apps.serve.openapi import description
from edgedecode.apps.serve.rounds import Piece
from edgedecode.options import DEFAULT_MAX_TOKENS
from edgedecode.structured.grammar import Grammar, GrammarKind
from edgedecode.structured.schema_check import checked_schema
from tests.apps.conftest import opened_toy

SERVER = {"options": SessionOptions(context=256)}


def tool(parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": parameters}}


def form(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@pytest.mark.parametrize("levels", [150, 490, 975])
@pytest.mark.parametrize("field", ["tools", "metadata", "response_format"])
def test_a_deeply_nested_body_is_refused_or_its_schema_is_left_out(field: str, levels: int, server: Running) -> None:
    value = {"tools": [tool("X")], "metadata": "X", "response_format": form("X")}[field]
    data = json.dumps(asked(max_tokens=2, **{field: value})).replace('"X"', '{"a":' * levels + "1" + "}" * levels)
    if levels > 200:
        server.refuses(data.encode(), "nested")
    elif field == "tools":  # as text it is too long for this model
        assert server.refuses(data.encode())["code"] == "context_length_exceeded"
    else:
        server.answer(data.encode())
        assert field == "metadata" or "nested" in server.note


@pytest.mark.parametrize("schema", [{"enum": ["\ud800"]}, {"properties": {"\udfff": {}}}])
def test_half_a_surrogate_pair_is_refused(schema: dict[str, Any], server: Running) -> None:
    for fields in ({"response_format": form(schema)}, {"tools": [tool(schema)]}, {"metadata": schema}):
        server.refuses(asked(**fields), "surrogate")
    server.refuses(body(RESPONSES, metadata=schema), "surrogate", RESPONSES)  # the reply would repeat it
    with pytest.raises(InputError, match="surrogate"):
        checked_schema(json.dumps(schema))
    for kind in (GrammarKind.REGEX, GrammarKind.LARK):
        with pytest.raises(InputError, match="surrogate"):
            Grammar(kind, "a\ud800")


LONG = [
    message
    for number in range(12)
    for message in (
        {"role": "user", "content": f"Message {number}: the ducks swim in the lake and the sun is bright today."},
        {"role": "assistant", "content": "Yes, they do swim in the lake."},
    )
] + [{"role": "user", "content": "Hello"}]


def test_no_turn_is_dropped_unless_the_request_says_so(server: Running) -> None:
    for path, fields in ((CHAT, {"messages": LONG}), (RESPONSES, {"input": LONG})):
        for more in ({}, {"truncation": "disabled"}):
            assert server.refuses(body(path) | fields | more, path=path)["code"] == "context_length_exceeded"
        assert server.answer(body(path, truncation="auto") | fields, path)["timings"]["dropped_turns"] > 0
    assert "dropped_turns" not in server.answer(asked(max_tokens=2))["timings"]


def test_an_answer_ends_where_the_context_does(server: Running) -> None:
    long = form({"type": "string", "minLength": 3000})
    reply = server.answer(asked(messages=LONG[:4] + LONG[-1:], max_tokens=500, response_format=long))
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["total_tokens"]) == ("length", 256)


@pytest.mark.parametrize("more", [{}, {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:weather"}])
def test_the_documented_function_is_called(more: dict[str, Any], server: Running) -> None:
    """The function of docs/serve.md, whose schema does not say that it is closed."""
    properties = {"city": {"type": "string"}, "day": {"type": "string"}}
    weather = {"type": "object", "properties": properties, "required": ["city", "day"], **more}
    (choice,) = server.answer(body(CHAT, QUESTION, 60, tool_choice="required", tools=[tool(weather)]))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == {"city": "Athens", "day": "Monday"}


def test_unique_items_false_means_nothing() -> None:
    assert checked_schema('{"type": "array", "uniqueItems": false}') == {"type": "array"}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every answer fail after its second piece."""
    pieces = running_module.Running.pieces

    async def some(self: running_module.Running, place: int = 0) -> AsyncIterator[Piece]:
        number = 0
        async for piece in pieces(self, place):
            yield piece
            number += 1
            if number == 2:
                raise CapabilityError("the matcher failed")

    monkeypatch.setattr(running_module.Running, "pieces", some)


@pytest.mark.usefixtures("failing")
def test_a_response_that_fails_in_the_middle_ends_as_failed(server: Running) -> None:
    given: Any = {"model": "demo", "input": STORY, "max_output_tokens": 30}
    with server.client.responses.stream(**given) as stream:
        events = list(stream)
    raw = list(server.client.responses.create(**given, stream=True))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert events[-1].type == raw[-1].type == "response.failed"
    assert raw[-1].response.status == "failed"
    assert (raw[-1].response.error.code, raw[-1].response.error.message) == ("server_error", "the matcher failed")
    described = {"$ref": "#/components/schemas/Response", "components": description(["demo"])["components"]}
    whole = [event.response.to_dict() for event in raw if hasattr(event, "response")]
    assert [each["status"] for each in whole] == ["in_progress", "in_progress", "failed"]
    for each in whole:
        Draft202012Validator(described).validate(each)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_an_answer_that_fails_is_the_servers_error(path: str, server: Running) -> None:
    assert server.refuses(body(path, most=30), path=path, status=500)["type"] == "server_error"


def test_a_response_repeats_what_was_asked(server: Running) -> None:
    fields = {"tools": FLAT, "tool_choice": "none", "metadata": {"a": "b"}, "instructions": "Be brief."}
    fields |= {"parallel_tool_calls": True}
    found = server.answer(body(RESPONSES, **fields), RESPONSES)
    assert {name: found[name] for name in fields} == fields


# -- sampling ----------------------------------------------------------------------------------------------------------

MOST = 40
FIELDS: list[dict[str, Any]] = [
    {"frequency_penalty": 2},
    {"presence_penalty": 2, "frequency_penalty": -0.1},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.1, "logit_bias": {"60": -2.5}},
    {"repetition_penalty": 3.0, "repeat_last_n": 24},
    {"typical_p": 0.4},
    {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    {"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.2},
    {
        "dry_multiplier": 50,
        "dry_base": 2,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 200,
        "dry_sequence_breakers": ["\n"],
    },
]
WARM: dict[str, Any] = {"temperature": 1.2, "seed": 8}


def sampled(server: Running, path: str, **fields: object) -> str:
    return text_of(server.answer(body(path, STORY, MOST, ignore_eos=True) | fields, path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_text_is_that_of_a_session(path: str, fields: dict[str, Any], server: Running) -> None:
    options = dict(fields)
    options["logit_bias"] = {int(id): amount for id, amount in fields.get("logit_bias", {}).items()}
    options["penalty_window"] = options.pop("repeat_last_n", 0)
    changed = False
    for more in ({}, WARM):
        sampling = SamplingOptions(**options, temperature=more.get("temperature", 0))
        asks = SessionOptions(
            context=256,
            drafter="none",
            sampling=sampling,
            seed=more.get("seed"),
            details=SessionDetails(ignore_eos=True),
        )
        with server.pair.session(asks) as session:
            answer = session.complete if path == COMPLETIONS else session.stream
            wanted = session.collect(answer(STORY, max_tokens=MOST)).text
        assert sampled(server, path, **fields, **more) == wanted
        changed |= sampled(server, path, **more) != wanted
    assert changed


@pytest.mark.parametrize("path", PATHS)
def test_a_ban_and_a_choice_are_followed(path: str, server: Running) -> None:
    tokenizer = server.pair.tokenizer
    ids = tokenizer.encode(sampled(server, path))
    banned = max({*ids}, key=ids.count)
    found = sampled(server, path, logit_bias={str(banned): -100})
    assert banned not in tokenizer.encode(found)
    assert sampled(server, path, logit_bias=[[banned, False]]) == found
    assert sampled(server, path, logit_bias={str(banned): 100}, stop="\n\n") == tokenizer.decode([banned] * MOST)


@pytest.mark.parametrize("name", ["ChatBody", "CompletionBody", "ResponseBody"])
def test_the_description_has_the_ranges(name: str) -> None:
    found = description(["demo"])["components"]["schemas"][name]["properties"]
    assert found["frequency_penalty"]["anyOf"][0] == {"type": "number", "minimum": -2, "maximum": 2}
    by_id, pairs = found["logit_bias"]["anyOf"][0]["anyOf"]
    assert by_id["additionalProperties"]["maximum"] == 100
    assert pairs["items"]["prefixItems"][0] == {"type": "integer"}
    assert found["repeat_penalty"]["anyOf"][0]["minimum"] == 1e-6


@pytest.mark.parametrize("path", PATHS)
def test_without_a_limit_an_answer_goes_on_to_the_contexts_end(path: str, tmp_path: Path) -> None:
    """Codex and aider give none, and answers of whole files are longer than the 512 tokens of a session."""
    with opened_toy(tmp_path) as pair, Running(pair) as server:
        reply = server.answer(body(path, most=None, ignore_eos=True), path)
        usage = reply["usage"]
        assert usage["total_tokens"] == 1024
        assert usage.get("completion_tokens", usage.get("output_tokens")) > DEFAULT_MAX_TOKENS


def test_a_packs_own_limit_is_followed(pair: Pair) -> None:
    with Running(pair) as server:
        usage = server.answer(body(CHAT, most=None, ignore_eos=True))["usage"]
        assert usage["completion_tokens"] == pair.manifest.generation.max_tokens
