"""`serve`: clients of Ollama pull models into the library, and delete them."""

import http.client
import json
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.apps.serving import CHAT, LONG, RESPONSES, Running, asked, body, wait_for
from tests.apps.test_serve_several import Several, arguments
from tests.library.conftest import HubServer, home, made
from tests.library.conftest import server as hub

# isort: split
from edgedecode import InputError, Pair
from edgedecode.apps.serve.command import _limits
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.ollama import library
from edgedecode.library import named_models, offers, packages

__all__ = ["home", "hub", "made"]
PULL, DELETE, TAGS = "/api/pull", "/api/delete", "/api/tags"


@pytest.fixture
def server(pair: Pair, home: Path, hub: HubServer, made: Callable[..., bytes]) -> Iterator[Several]:
    hub.files["owner/tiny"] = {"tiny-Q8_0.gguf": made()}
    with Several(pair) as server:
        yield server


def names(server: Running) -> list[str]:
    every = [each["name"] for each in json.loads(server.get(TAGS).text)["models"]]
    return [name for name in every if "@" not in name]


def pulled(server: Running, name: str, **more: Any) -> list[dict[str, Any]]:
    """Return the lines of a pull."""
    reply = server.send("POST", PULL, {"model": name, **more})
    assert reply.headers["Content-Type"] == "application/x-ndjson", reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def deleted(server: Running, name: str) -> tuple[int, str]:
    reply = server.send("DELETE", DELETE, {"model": name})
    return reply.status, json.loads(reply.text)["error"] if reply.text else ""


def test_a_model_is_pulled_used_and_deleted(server: Several, made: Callable[..., bytes], tmp_path: Path) -> None:
    assert names(server) == ["demo"]
    events = pulled(server, "hf.co/owner/tiny")
    assert events[0] == {"status": "pulling manifest"}
    assert events[-1] == {"status": "success"}
    steps = [each for each in events if "total" in each]
    assert steps[-1]["status"] == "downloading owner/tiny:Q8_0"
    assert steps[-1]["completed"] == steps[-1]["total"] > 0
    assert len({each["digest"] for each in steps}) == 1
    assert names(server) == ["owner/tiny:Q8_0", "demo"]
    assert server.answer({"model": "owner/tiny", "prompt": "Hi", "stream": False}, "/api/generate")["done"]
    assert server.held == ["owner/tiny:Q8_0"]
    assert server.answer({"model": "hf.co/owner/tiny"}, "/api/show")["details"]["quantization_level"] == "Q8_0"
    assert deleted(server, "owner/tiny:Q8_0") == (200, "")  # it is idle, and leaves memory
    assert (names(server), server.held) == (["demo"], [])
    assert not list((tmp_path / "cache" / "models").rglob("*.gguf"))
    assert deleted(server, "owner/tiny")[0] == 404


def test_a_model_that_is_not_removed_stays_in_memory(server: Several) -> None:
    assert server.answer({"model": "demo", "prompt": "Hi", "stream": False}, "/api/generate")["done"]
    assert (deleted(server, "demo")[0], server.held) == (400, ["demo"])


def test_ollamas_client_pulls_and_deletes(server: Several) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(f"http://127.0.0.1:{server.port}") as client:
        assert client.pull("owner/tiny").status == "success"
        assert [each.status for each in client.pull("owner/tiny", stream=True)][-1] == "success"
        assert client.show("owner/tiny").details.quantization_level == "Q8_0"
        assert client.delete("owner/tiny:Q8_0").status == "success"
        for wrong in ("owner/missing", "nonsense name", "../etc", "/etc/passwd"):
            with pytest.raises(ollama.ResponseError):
                [*client.pull(wrong, stream=True)]
            with pytest.raises(ollama.ResponseError):
                client.delete(wrong)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("owner/missing", "could not be found on the hub (404"),
        ("nonsense name", "names nothing to download"),
        ("llama3.2:1b", "names nothing to download"),
    ],
)
def test_nonsense_is_refused_in_a_line(server: Several, name: str, said: str) -> None:
    (*_, last) = pulled(server, name)
    assert said in last["error"]
    status, reply = server.post({"model": name, "stream": False}, PULL)
    assert (status, said in reply["error"]) == (400, True), reply
    assert names(server) == ["demo"]


def test_bodies_that_are_wrong(server: Several) -> None:
    for given in ({}, {"model": ""}, {"model": 7}, {"model": "x" * 301}, b"{", {"model": "./a.gguf"}, {"name": "/a"}):
        status, reply = server.post(given, PULL)
        assert (status, {*reply}) == (400, {"error"}), given
    assert deleted(server, "")[0] == 400


def test_two_pulls_of_one_model_are_one_download(
    server: Several, hub: HubServer, made: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls: list[str] = []
    real = named_models.pull

    def counted(word: str) -> Any:
        pulls.append(word)
        wait_for(lambda: len(waiting) == 2)
        return real(word)

    waiting: list[int] = []
    monkeypatch.setattr("edgedecode.apps.serve.ollama.library.pull", counted)

    def ask(number: int) -> list[dict[str, Any]]:
        waiting.append(number)
        return pulled(server, "owner/tiny")

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first[-1] == second[-1] == {"status": "success"}
    assert len(pulls) <= 2  # the second may come once the first has ended
    assert names(server) == ["owner/tiny:Q8_0", "demo"]


def test_a_full_disk_is_told(server: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(10**6))
    (*_, last) = pulled(server, "owner/tiny")
    assert "has 1 MB left: make room" in last["error"]
    status, reply = server.post({"model": "owner/tiny", "stream": False}, PULL)
    assert (status, "has 1 MB left: make room" in reply["error"]) == (400, True)


def test_more_than_a_few_pulls_wait_for_their_turn(server: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, begun = threading.Event(), list[str]()

    def slow(word: str) -> None:
        begun.append(word)
        ends.wait()

    monkeypatch.setattr("edgedecode.apps.serve.ollama.library.pull", slow)
    with ThreadPoolExecutor(5) as pool:
        every = [f"owner/{number}" for number in range(4)]
        running = [pool.submit(pulled, server, name) for name in (*every, "hf.co/owner/0")]  # the last is the first
        wait_for(lambda: len(begun) == len(every))
        status, reply = server.post({"model": "owner/5", "stream": False}, PULL)
        ends.set()
        assert (status, reply) == (503, {"error": "4 models are being pulled: try again later"})
        assert all(each.result()[-1] == {"status": "success"} for each in running)
    assert {*begun} == {*every}


def test_a_download_that_breaks_off_is_pulled_again(server: Several, hub: HubServer) -> None:
    hub.ends_after = 1000
    assert "owner/tiny:Q8_0 could not be downloaded" in pulled(server, "owner/tiny")[-1]["error"]
    assert names(server) == ["demo"]
    hub.ends_after, hub.range_status = None, 206
    assert pulled(server, "owner/tiny")[-1] == {"status": "success"}


def test_a_download_ends_with_the_server(pair: Pair, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose client has left: pip's process does not outlive the server."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return children[0]

    monkeypatch.setattr(packages, "subprocess", Mock(Popen=start))
    monkeypatch.setattr(library, "_LAST_SECONDS", 60.0)  # of a busy machine
    with Several(pair) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", PULL, json.dumps({"model": "some-model"}))
        wait_for(lambda: children)
        connection.close()
    ended = children[0].poll()
    children[0].kill()
    children[0].wait()
    assert ended is not None


def test_a_busy_model_is_not_deleted(server: Several, made: Callable[..., bytes]) -> None:
    pulled(server, "owner/tiny")
    with server.client.chat.completions.create(
        **asked(model="owner/tiny", response_format=LONG, stream=True)
    ) as stream:
        next(iter(stream))
        status, said = deleted(server, "owner/tiny")
        assert (status, "answers a request" in said) == (503, True)
        assert next(iter(stream))
    wait_for(lambda: not server.models.places.running)
    wait_for(lambda: deleted(server, "owner/tiny")[0] == 200)


def test_what_was_not_pulled_stays(server: Several, home: Path, made: Callable[..., bytes]) -> None:
    other = home / ".lmstudio" / "models" / "owner" / "theirs" / "theirs-Q8_0.gguf"
    other.parent.mkdir(parents=True)
    other.write_bytes(made())
    server.shelf.changed()
    assert deleted(server, "owner/theirs") == (
        400,
        f"owner/theirs:Q8_0 (LM Studio, {other}) was not pulled, and is left as it is: remove it where it came from",
    )
    assert "bundled" in deleted(server, "demo")[1]
    assert other.is_file()
    assert "not removed" in deleted(server, "demo@plain")[1] or deleted(server, "demo@plain")[0] in (400, 404)


def test_a_server_of_one_model_pulls_no_other(pair: Pair) -> None:
    with Running(pair) as server:
        assert pulled(server, "demo") == [{"status": "pulling manifest"}, {"status": "success"}]
        status, reply = server.post({"model": "owner/tiny"}, PULL)
        assert (status, "start `edgedecode serve` without a name" in reply["error"]) == (400, True)
        assert deleted(server, "demo")[0] == 400


def test_other_pages_change_nothing(pair: Pair, home: Path) -> None:
    with Several(pair, limits=Limits(origins=("*",))) as server:
        for method, path in (("POST", PULL), ("DELETE", DELETE)):
            for more in ({}, {"Authorization": "Bearer anything"}):
                reply = server.send(method, path, {"model": "demo"}, Origin="https://example.org", **more)
                assert (reply.status, "pages of other origins change nothing" in reply.text) == (403, True)
        assert server.send("POST", CHAT, asked(model="demo", max_tokens=2), Origin="https://example.org").status == 200
        own = f"http://127.0.0.1:{server.port}"
        assert server.send("POST", PULL, {"model": "no name"}, Origin=own).status == 200


KEYS = "the-first-of-the-keys", "another-one-to-ask-with", "and-a-third-to-ask-with"


def test_keys_that_may_only_ask_change_nothing(pair: Pair, home: Path) -> None:
    limits = Limits(key=KEYS[0], asking=KEYS[1:], origins=("*",))
    with Several(pair, limits=limits) as server:

        def status(method: str, path: str, given: object, key: str, **more: str) -> int:
            return int(server.send(method, path, given, Authorization=f"Bearer {key}", **more).status)

        for key in KEYS[1:]:
            assert status("POST", CHAT, asked(model="demo", max_tokens=2), key) == 200
            assert (status("GET", TAGS, None, key), status("POST", "/api/show", {"model": "demo"}, key)) == (200, 200)
            assert status("POST", PULL, {"model": "no name"}, key) == status("DELETE", DELETE, {}, key) == 403
        assert status("POST", PULL, {"model": "no name"}, KEYS[0]) == 200
        assert status("POST", PULL, {"model": "no name"}, KEYS[0], Origin="https://example.org") == 200
        assert status("DELETE", DELETE, {"model": "demo"}, KEYS[0]) == 400
        for wrong in ("", KEYS[0][:-1], "none"):
            assert status("GET", TAGS, None, wrong) == status("DELETE", DELETE, {"model": "demo"}, wrong) == 401


def test_a_key_has_its_share_of_the_requests_that_run_and_wait(pair: Pair) -> None:
    forms = {
        CHAT: lambda error: error["error"]["code"] == "rate_limit_exceeded",
        "/v1/messages": lambda error: (error["type"], error["error"]["type"]) == ("error", "rate_limit_error"),
        "/api/chat": lambda error: "its share" in error["error"],
        "/completion": lambda error: error["error"]["code"] == 429,
    }
    with Running(pair, Limits(key=KEYS[0], asking=KEYS[1:]), parallel=2, waiting=1) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        given = {"Authorization": f"Bearer {KEYS[1]}"}
        long = asked(stream=True, max_tokens=4000, response_format=LONG, n=128)
        connection.request("POST", CHAT, json.dumps(long), given)
        assert connection.getresponse().status == 200
        for path, has_form in forms.items():
            reply = server.send("POST", path, {}, **given)
            assert (reply.status, reply.headers["Retry-After"], has_form(json.loads(reply.text))) == (429, "1", True)
        assert server.send("POST", CHAT, asked(max_tokens=2), Authorization=f"Bearer {KEYS[0]}").status == 200
        assert server.get(TAGS, **given).status == 200
        connection.close()
        wait_for(lambda: server.send("POST", CHAT, asked(max_tokens=2), **given).status == 200)


def test_chats_of_different_keys_share_nothing(pair: Pair, home: Path) -> None:
    with Running(pair, Limits(key=KEYS[0], asking=KEYS[1:])) as server:

        def cached(key: str) -> int:
            messages = [{"role": "user", "content": "How many days are in a week, and what are their names?"}]
            reply = server.send("POST", CHAT, asked(messages=messages, max_tokens=4), Authorization=f"Bearer {key}")
            return int(json.loads(reply.text)["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached(key) for key in KEYS] == [0, 0, 0]
        assert all(cached(key) > 0 for key in KEYS)


def test_a_response_is_continued_with_its_own_key(pair: Pair, home: Path) -> None:
    with Running(pair, Limits(key=KEYS[0], asking=KEYS[1:])) as server:

        def ask(key: str, **fields: object) -> tuple[int, Any]:
            return server.post(body(RESPONSES, **fields), RESPONSES, Authorization=f"Bearer {key}")

        _, first = ask(KEYS[1])
        refers = [{"type": "item_reference", "id": first["output"][0]["id"]}]
        for key in KEYS:
            found = {ask(key, previous_response_id=first["id"])[0], ask(key, input=refers)[0]}
            assert found == {200 if key == KEYS[1] else 400}


@pytest.mark.parametrize(
    ("lines", "said"),
    [([*KEYS[:2]], ""), ([KEYS[0], "", KEYS[1]], "one word"), ([KEYS[0], "short"], "one word"), ([""], "one word")],
)
def test_a_file_has_a_key_a_line(lines: list[str], said: str, tmp_path: Path) -> None:
    (path := tmp_path / "keys").write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    given = arguments("--api-key-file", str(path))
    if said:
        with pytest.raises(InputError, match=said):
            _limits(given)
    else:
        found = _limits(given)
        assert (found.key, found.asking) == (KEYS[0], (KEYS[1],))
