"""`serve`: what every API refuses, in its own form: keys, hosts, pages, sizes, methods, and a full queue."""

import http.client
import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, KEY, LLAMAS, LONG, PATHS, Running, asked, error_of, wait_for

# isort: split
from edgedecode import Pair
from edgedecode.apps.serve.guards import Limits

SERVER = {"limits": Limits(key=KEY, most_nbytes=20_000)}
KEYED, MESSAGES = {"X-Api-Key": KEY}, "/v1/messages"
ANTHROPICS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
OTHERS = "invalid_request_error"
KINDS: dict[str, dict[int, str]] = {
    **{path: {} for path in PATHS},
    **dict.fromkeys((MESSAGES, f"{MESSAGES}/count_tokens"), ANTHROPICS),
    **{path: {401: "authentication_error", 403: "permission_error"} for path in LLAMAS},
}
"""Types of errors by status, but for `OTHERS`."""
HEADERS = {f"X-{number}": "" for number in range(101)}
CASES: list[tuple[int, str, dict[str, str], Any]] = [
    (401, "POST", {}, {}),
    (401, "POST", {"X-Api-Key": "wrong"}, {}),
    (421, "POST", KEYED | {"Host": "evil.example"}, {}),
    (403, "POST", KEYED | {"Origin": "https://evil.example"}, {}),
    (413, "POST", KEYED, b"x" * 20_001),
    (431, "POST", KEYED | HEADERS, {}),
    (405, "GET", KEYED, None),
    (400, "POST", KEYED, b"{"),
]


@pytest.mark.parametrize("path", [*KINDS, "/api/show", "/api/chat", "/api/generate"])
def test_the_limits_hold_and_refusals_have_the_form_of_the_api(server: Running, path: str) -> None:
    for status, method, headers, given in CASES:
        reply = server.send(method, path, given, **headers)
        error = error_of(json.loads(reply.text), path)
        assert reply.status == (error["code"] if path in LLAMAS else status) == status
        assert path not in KINDS or error["type"] == KINDS[path].get(status, OTHERS)
        assert int(reply.headers["Content-Length"]) == len(reply.text)


def test_reads_have_limits_and_unknown_paths_a_form_too(server: Running) -> None:
    said = f"there is no {MESSAGES}/batches"
    server.refuses({}, said, f"{MESSAGES}/batches", status=404, kind=ANTHROPICS[404])
    assert {server.get(path).status for path in ("/slots", "/api/tags", "/v1/models")} == {401}


def test_a_full_queue_refuses_in_every_form(pair: Pair) -> None:
    kinds = {CHAT: "server_error", MESSAGES: "overloaded_error", "/completion": "unavailable_error", "/api/chat": ""}
    given = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}
    with Running(pair, parallel=1, waiting=0) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", CHAT, json.dumps(asked(max_tokens=100_000, response_format=LONG, stream=True)))
        reply = connection.getresponse()
        reply.readline()
        for path, kind in kinds.items():
            left_out = "messages" if path == "/completion" else "prompt"
            asks = {name: each for name, each in given.items() if name != left_out}
            server.refuses(asks, "too many requests", path, status=503, kind=kind)
        reply.close()
        connection.close()
        wait_for(lambda: server.service.running == 0)
