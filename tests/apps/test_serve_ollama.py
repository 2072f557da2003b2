"""`serve`: Ollama's API, as its clients use it, and the server's limits there."""

import json
from typing import Any

import pytest

from tests.apps.serving import KEY, Running

# isort: split
from edgedecode import Pair
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.offered import model_names

SERVER = {"limits": Limits(key=KEY, most_nbytes=20_000)}
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}


def refused(server: Running, given: object, path: str, *, status: int = 400) -> str:
    """Check that a request is refused in Ollama's form, in one line; return it."""
    found, reply = server.post(given, path)
    assert found == status, reply
    assert {*reply} == {"error"}
    assert "\n" not in reply["error"]
    return str(reply["error"])


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
    assert said in refused(server, given, "/api/show", status=status)


def test_the_limits_hold_and_refusals_have_ollamas_form(server: Running) -> None:
    host, origin = {"Host": "evil.example"}, {"Origin": "https://evil.example"}
    cases: list[tuple[int, str, str, dict[str, str], Any]] = [
        (401, "GET", "/api/tags", {}, None),
        (421, "GET", "/api/tags", AUTHORIZATION | host, None),
        (403, "POST", "/api/show", AUTHORIZATION | origin, {"model": "demo"}),
        (413, "POST", "/api/show", AUTHORIZATION, b"x" * 20_001),
        (404, "POST", "/api/push", AUTHORIZATION, {"model": "demo"}),
        (405, "GET", "/api/show", AUTHORIZATION, None),
        (431, "GET", "/api/ps", AUTHORIZATION | {f"X-{number}": "" for number in range(101)}, None),
    ]
    for status, method, path, headers, given in cases:
        reply = server.send(method, path, given, **headers)
        assert reply.status == status, path
        assert {*json.loads(reply.text)} == {"error"}
        assert isinstance(json.loads(reply.text)["error"], str)
        assert int(reply.headers["Content-Length"]) == len(reply.text)


def test_ollamas_client_finds_the_models(server: Running, pair: Pair) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(f"http://127.0.0.1:{server.port}", headers=AUTHORIZATION) as client:
        assert [each.model for each in client.list().models] == model_names(pair)
        assert client.show("demo").modelinfo["general.architecture"] == "llama"
        assert client.ps().models[0].model == "demo"
        with pytest.raises(ollama.ResponseError, match="there is no model 'nope'") as caught:
            client.show("nope")
    assert caught.value.status_code == 404
