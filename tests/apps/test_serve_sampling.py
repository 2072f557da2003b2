"""`serve`: penalties and biases in every endpoint's fields give the text of a session with these options."""

from collections.abc import Iterator
from typing import Any

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.openapi import description
from tests.apps.test_serve import STORY, Running

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
MOST = 40


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(), options=SessionOptions(context=256))
        yield running
        running.close()


def body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    prompt: dict[str, Any] = {
        CHAT: {"messages": [{"role": "user", "content": STORY}], "max_tokens": MOST},
        COMPLETIONS: {"prompt": STORY, "max_tokens": MOST},
        RESPONSES: {"input": STORY, "max_output_tokens": MOST},
    }[path]
    return {"model": "demo", "temperature": 0, "ignore_eos": True} | prompt | fields


def text(server: Running, path: str, fields: dict[str, Any]) -> str:
    status, reply = server.post(body(path, fields), path)
    assert status == 200, reply
    if path == RESPONSES:
        return str(reply["output"][0]["content"][0]["text"])
    return str(reply["choices"][0].get("text") or reply["choices"][0]["message"]["content"])


def session_text(server: Running, path: str, sampling: SamplingOptions, *, seed: int | None = None) -> str:
    options = SessionOptions(context=256, drafter="none", sampling=sampling, seed=seed, ignore_eos=True)
    with server.pair.session(options) as session:
        answer = session.complete if path == COMPLETIONS else session.stream
        return session.collect(answer(STORY, max_tokens=MOST)).text


FIELDS: list[dict[str, Any]] = [
    {"frequency_penalty": 2},
    {"presence_penalty": 2, "frequency_penalty": -0.1},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.1, "logit_bias": {"60": -2.5}},
    {"repetition_penalty": 3.0, "repeat_last_n": 24},
]
WARM: dict[str, Any] = {"temperature": 1.2, "seed": 8}


@PATHS
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_text_is_that_of_a_session(path: str, fields: dict[str, Any], server: Running) -> None:
    options = dict(fields)
    options["logit_bias"] = {int(id): amount for id, amount in fields.get("logit_bias", {}).items()}
    options["penalty_window"] = options.pop("repeat_last_n", 0)
    for more in ({}, WARM):
        given = options | {"temperature": more.get("temperature", 0)}
        wanted = session_text(server, path, SamplingOptions(**given), seed=more.get("seed"))
        assert text(server, path, fields | more) == wanted
    assert text(server, path, WARM) != wanted


@PATHS
def test_a_ban_and_a_choice_are_followed(path: str, server: Running) -> None:
    tokenizer = server.pair.tokenizer
    ids = tokenizer.encode(text(server, path, {}))
    banned = max({*ids}, key=ids.count)
    found = text(server, path, {"logit_bias": {str(banned): -100}})
    assert banned not in tokenizer.encode(found)
    assert text(server, path, {"logit_bias": [[banned, False]]}) == found
    assert text(server, path, {"logit_bias": {str(banned): 100}, "stop": "\n\n"}) == tokenizer.decode([banned] * MOST)


@PATHS
def test_values_that_mean_nothing_change_nothing(path: str, server: Running) -> None:
    plain = text(server, path, {})
    for fields in ({"logit_bias": {}}, {"frequency_penalty": 0, "presence_penalty": 0.0}, {"repeat_penalty": 1}):
        assert text(server, path, fields) == plain
    assert text(server, path, {"repeat_last_n": -1} if path != RESPONSES else {"presence_penalty": None}) == plain
    assert text(server, path, {"repeat_penalty": 1.3}) == text(server, path, {"repetition_penalty": 1.3})


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
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
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(
    path: str, stream: bool, fields: dict[str, Any], param: str, said: str, server: Running
) -> None:
    status, reply = server.post(body(path, fields | {"stream": stream}), path)
    assert (status, reply["error"]["param"], said in reply["error"]["message"]) == (400, param, True), reply


def test_the_description_has_the_fields() -> None:
    schemas = description(["demo"])["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody", "ResponseBody"):
        found = schemas[name]["properties"]
        assert found["frequency_penalty"]["anyOf"][0] == {"type": "number", "minimum": -2, "maximum": 2}
        by_id, pairs = found["logit_bias"]["anyOf"][0]["anyOf"]
        assert by_id["additionalProperties"]["maximum"] == 100
        assert pairs["items"]["prefixItems"][0] == {"type": "integer"}
        assert found["repeat_penalty"]["anyOf"][0]["minimum"] == 1e-6
