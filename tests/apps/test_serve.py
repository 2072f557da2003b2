"""`serve`: OpenAI's own client over every endpoint, bad requests, and many clients at a time."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import edgedecode
from edgedecode import Pair, Rule, SamplingOptions, SessionOptions
from edgedecode.cli import main
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

import openai
import uvicorn

from edgedecode.apps.serve.application import Limits, create_app
from edgedecode.apps.serve.connections import server_config
from edgedecode.apps.serve.running import Service

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
STORY = "Tell me a story about a duck named Maya."
KEY = "a-key-of-the-tests"


class Running:
    """A server in a thread, on a free port."""

    def __init__(
        self, pair: Pair, limits: Limits, *, parallel: int = 4, waiting: int = 64, options: SessionOptions | None = None
    ) -> None:
        self.pair, self.socket = pair, socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self._made = threading.Event()
        self._settings = limits, parallel, waiting, options or SessionOptions()
        self.note = ""
        """What the last reply of `post` says was not followed."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._made.wait()
        while not self._server.started:
            sleep(0.01)
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=limits.key or "none")

    def _run(self) -> None:
        import asyncio

        async def serve() -> None:
            limits, parallel, waiting, options = self._settings
            self.service = Service(self.pair, options, parallel=parallel, waiting=waiting, patience=60.0)
            app = create_app(self.service, limits)
            self._server = uvicorn.Server(server_config(app, seconds=limits.seconds, log_level="critical"))
            self._made.set()
            await self._server.serve(sockets=[self.socket])

        asyncio.run(serve())

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()

    def post(self, body: bytes | object, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any]:
        """Send a request as it is; return the status and the JSON of the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"} | headers
        connection.request("POST", path, data, given)
        reply = connection.getresponse()
        value = json.loads(reply.read())
        self.note = reply.headers.get("Edgedecode-Note", "")
        connection.close()
        return reply.status, value


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        yield pair


@pytest.fixture(scope="module")
def server(pair: Pair) -> Iterator[Running]:
    running = Running(pair, Limits(key=KEY, most_nbytes=100_000, seconds=1.0))
    yield running
    running.close()


def lone(pair: Pair, text: str, *, seed: int | None, temperature: float, most: int) -> str:
    options = SessionOptions(sampling=SamplingOptions(temperature=temperature), seed=seed)
    with pair.session(options) as session:
        return session.generate(text, max_tokens=most).text


def asked(**fields: object) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0, **fields}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_answered_as_by_a_session(server: Running, pair: Pair, *, stream: bool) -> None:
    wanted = lone(pair, STORY, seed=None, temperature=0.0, most=40)
    reply = server.client.chat.completions.create(**asked(max_tokens=40, stream=stream))
    if stream:
        parts = list(reply)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == wanted
        assert parts[0].choices[0].delta.role == "assistant"
        assert [part.choices[0].finish_reason for part in parts][-1] == "length"
        assert len({part.id for part in parts}) == 1
    else:
        assert reply.choices[0].message.content == wanted
        assert reply.choices[0].finish_reason == "length"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 40)
        check_counts(reply)


def check_counts(reply: Any) -> int:
    """Check that both places count the same drafted tokens; return those accepted."""
    details, timings = reply.usage.completion_tokens_details, reply.timings
    assert details.accepted_prediction_tokens == timings["draft_n_accepted"]
    assert details.rejected_prediction_tokens == timings["draft_n"] - timings["draft_n_accepted"]
    return int(details.accepted_prediction_tokens)


def test_drafted_tokens_are_counted(pair: Pair) -> None:
    running = Running(pair, Limits(key=KEY), options=SessionOptions(draft_max=3))  # the scheduler may draft nothing
    assert check_counts(running.client.chat.completions.create(**asked(max_tokens=40))) > 0
    running.close()


def test_a_streams_usage_is_its_last_part(server: Running) -> None:
    parts = list(server.client.chat.completions.create(**asked(stream=True, stream_options={"include_usage": True})))
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens > 0
    assert parts[-2].choices[0].finish_reason == "stop"


def test_a_seed_repeats_an_answer_and_other_seeds_do_not(server: Running, pair: Pair) -> None:
    def answer(seed: int) -> str:
        reply = server.client.chat.completions.create(**asked(temperature=1.0, seed=seed, max_tokens=30))
        content: str = reply.choices[0].message.content
        return content

    assert answer(1) == answer(1) == lone(pair, STORY, seed=1, temperature=1.0, most=30)
    assert answer(2) != answer(1)


def test_several_answers_have_their_own_seeds(server: Running, pair: Pair) -> None:
    reply = server.client.chat.completions.create(**asked(temperature=1.0, seed=5, n=3, max_tokens=12))
    texts = [choice.message.content for choice in reply.choices]
    assert texts == [lone(pair, STORY, seed=5 + number, temperature=1.0, most=12) for number in range(3)]
    streamed = server.client.chat.completions.create(**asked(temperature=1.0, seed=5, n=3, max_tokens=12, stream=True))
    found = ["", "", ""]
    for part in streamed:
        found[part.choices[0].index] += part.choices[0].delta.content or ""
    assert found == texts


def test_stop_strings_end_an_answer_before_them(server: Running, pair: Pair) -> None:
    text = lone(pair, STORY, seed=None, temperature=0.0, most=60)
    stop = text[20:27]
    reply = server.client.chat.completions.create(**asked(stop=[stop], max_tokens=60))
    assert reply.choices[0].message.content == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_continued(server: Running, pair: Pair, *, stream: bool) -> None:
    with pair.session(SessionOptions(sampling=SamplingOptions(temperature=0.0))) as session:
        wanted = "".join(chunk.text for chunk in session.complete("Once upon a time", max_tokens=12))
    words = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": stream}
    reply = server.client.completions.create(**words)
    found = "".join(part.choices[0].text for part in reply) if stream else reply.choices[0].text
    assert found == wanted


def test_a_conversation_reuses_its_key_value_cache(server: Running) -> None:
    first = server.client.chat.completions.create(**asked(top_p=0.9, max_tokens=20))
    messages = [
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    second = server.client.chat.completions.create(**asked(messages=messages, top_p=0.9, max_tokens=5))
    assert second.usage.prompt_tokens_details.cached_tokens > 18


def test_models_are_the_pack_and_its_modes(server: Running) -> None:
    assert [model.id for model in server.client.models.list()] == ["demo", "demo@plain", "demo@switch"]
    assert server.client.models.retrieve("demo@switch").id == "demo@switch"
    reply = server.client.chat.completions.create(**asked(model="demo@switch", max_tokens=8))
    assert reply.choices[0].message.content


def test_answers_follow_a_schema(server: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}
    schema |= {"additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    reply = server.client.chat.completions.create(**asked(response_format=form, max_tokens=50))
    assert reply.choices[0].finish_reason == "stop"
    assert 0 <= json.loads(reply.choices[0].message.content)["n"] <= 9
    reply = server.client.chat.completions.create(**asked(response_format={"type": "json_object"}, max_tokens=200))
    assert reply.choices[0].message.content.startswith("{")
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_content_parts_and_developer_messages_are_read(server: Running, pair: Pair) -> None:
    parts = [{"type": "text", "text": STORY[:10]}, {"type": "text", "text": STORY[10:]}]
    messages = [{"role": "developer", "content": ""}, {"role": "user", "content": parts}]
    status, value = server.post(asked(messages=messages[1:], max_tokens=10))
    assert status == 200
    assert value["choices"][0]["message"]["content"] == lone(pair, STORY, seed=None, temperature=0.0, most=10)


BAD: list[tuple[object, int, str]] = [
    (b"", 400, "not JSON"),
    (b"{", 400, "not JSON"),
    (b"\xff\xfe", 400, "not JSON"),
    (b"[" * 50_000, 400, "JSON"),
    (b"[]", 400, "not a JSON object"),
    (b'{"model": "demo", "model": "demo"}', 400, "appears twice"),
    ({}, 400, "messages is missing"),
    ({"model": "demo"}, 400, "messages"),
    (asked(messages=[]), 400, "messages"),
    (asked(messages="hi"), 400, "messages"),
    (asked(messages=[{"role": "king", "content": "hi"}, {"role": "user", "content": "x"}]), 400, "role 'king'"),
    (asked(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "image_url"),
    (asked(model="demo:other"), 404, "there is no model"),
    (asked(model="demo:"), 404, "there is no model"),
    (asked(model="demo@fast"), 404, "there is no model"),
    (asked(model="@fast"), 404, "there is no model"),
    (asked(model=7), 400, "model"),
    (asked(max_tokens=0), 400, "max_tokens is 0"),
    (asked(max_tokens=-2), 400, "max_tokens"),
    (asked(temperature=-1), 400, "temperature"),
    (asked(temperature="hot"), 400, "temperature"),
    (asked(top_p=-0.1), 400, "top_p"),
    (asked(n=129), 400, "n"),
    (asked(seed=-2), 400, "seed"),
    (asked(seed=1 << 70), 400, "seed"),
    (asked(stop=["a"] * 17), 400, "stop"),
    (asked(functions=[{"name": "f"}]), 400, "functions is not supported"),
    (asked(logprobs=5), 400, "logprobs"),
    (asked(top_logprobs=2), 400, "top_logprobs needs logprobs"),
    (asked(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    (asked(frequency_penalty=2.5), 400, "frequency_penalty is '2.5'"),
    (asked(response_format={"type": "xml"}), 400, "response_format.type must be one of text, json_object"),
    (asked(response_format={"type": "json_schema"}), 400, "response_format.schema is missing"),
    (
        asked(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}, "strict": True}}),
        400,
        "response_format.json_schema.schema.not: not cannot be followed",
    ),
    (asked(response_format={"type": "json_object"}, model="demo@switch"), 400, "leave out switching"),
    (asked(messages=[{"role": "user", "content": "word " * 9000}]), 400, "context"),
    (b"x" * 100_001, 413, "larger than"),
]


@pytest.mark.parametrize(("body", "status", "said"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_a_bad_request_gets_an_error_of_openais_form(body: object, status: int, said: str, server: Running) -> None:
    found, value = server.post(body)
    assert (found, said in value["error"]["message"]) == (status, True), value
    assert {*value["error"]} == {"message", "type", "param", "code"}
    assert server.post(asked(max_tokens=2))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "localhost:1"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"bearer {KEY}"}, 200),
    ],
)
def test_other_hosts_pages_and_keys_are_refused(headers: dict[str, str], status: int, server: Running) -> None:
    assert server.post(asked(max_tokens=2), **headers)[0] == status


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/health", 405)])
def test_unknown_paths_and_methods_are_refused(path: str, status: int, server: Running) -> None:
    assert server.post({}, path)[0] == status


def test_a_body_that_does_not_arrive_is_given_up(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        lines = [
            "POST /v1/completions HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {KEY}",
            "Content-Length: 50",
        ]
        connection.sendall("\r\n".join([*lines, "", "{"]).encode())
        connection.settimeout(20)
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_health_and_metrics_count(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read())["status"] == "ok"
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    text = connection.getresponse().read().decode()
    connection.close()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(found['edgedecode_tokens_total{kind="written"}']) > 0
    assert int(found['edgedecode_requests_total{path="/v1/chat/completions",status="200"}']) > 0


def wait_for(condition: Any) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline
        sleep(0.02)


def held(pair: Pair) -> dict[str, int]:
    """Return the leased bytes by holder."""
    found: dict[str, int] = {}
    for lease in pair.budget.leases:
        found[lease.name] = found.get(lease.name, 0) + lease.nbytes
    return found


def test_many_clients_get_their_lone_answers_and_leave_nothing_behind(pair: Pair) -> None:
    """More clients than answers at a time; a third leaves in the middle of a stream."""
    wanted = {seed: lone(pair, STORY, seed=seed, temperature=1.0, most=40) for seed in range(24)}
    before = held(pair)
    running = Running(pair, Limits(), parallel=3, waiting=100)

    def ask(seed: int) -> bool:
        stream = running.client.chat.completions.create(**asked(temperature=1.0, seed=seed, max_tokens=40, stream=True))
        text = ""
        for part in stream:
            text += part.choices[0].delta.content or ""
            if seed % 3 == 0 and text:
                stream.close()
                return wanted[seed].startswith(text)
        return text == wanted[seed]

    try:
        with ThreadPoolExecutor(24) as pool:
            assert all(pool.map(ask, wanted))
        wait_for(lambda: not running.service.running)
        assert running.service.queued == 0
    finally:
        running.close()
    assert held(pair) == before


def test_plain_decoding_is_offered_whatever_the_rule(pair: Pair) -> None:
    running = Running(pair, Limits(), options=SessionOptions(rule=Rule.RATIO))
    try:
        status, value = running.post(asked(model="demo@plain", max_tokens=5, temperature=0.8, seed=1))
        assert (status, value["timings"]["draft_n"]) == (200, 0)
    finally:
        running.close()


def test_options_of_the_command_hold_where_a_request_gives_none(pair: Pair) -> None:
    options = SessionOptions(sampling=SamplingOptions(temperature=1.0), seed=4)
    running = Running(pair, Limits(), options=options)
    try:
        body = asked(max_tokens=20)
        del body["temperature"]
        texts = [running.post(body)[1]["choices"][0]["message"]["content"] for _ in range(2)]
        assert texts == [lone(pair, STORY, seed=4, temperature=1.0, most=20)] * 2
        assert running.post(asked(max_tokens=20))[1]["choices"][0]["message"]["content"] != texts[0]
    finally:
        running.close()


def test_a_full_queue_is_refused(pair: Pair) -> None:
    running = Running(pair, Limits(), parallel=1, waiting=1)
    try:
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: running.post(asked(max_tokens=200, temperature=1))[0], range(8)))
        assert {*statuses} <= {200, 503}
        assert statuses.count(200) >= 2 or 503 in statuses
        assert running.post(asked(max_tokens=2))[0] == 200
    finally:
        running.close()


def test_answers_wait_for_room_in_the_budget(pair: Pair) -> None:
    """The budget has room for few sessions: the others wait, and all are answered."""
    from edgedecode.memory.limit import Limit

    limited = pair.budget.limit
    with pair.session(SessionOptions(context=2048)) as one:
        one.generate("Hi", max_tokens=2)
        room = pair.budget.used_nbytes
    pair.budget.limit = Limit(room + 5_000_000)
    running = Running(pair, Limits(), parallel=8)
    try:
        with ThreadPoolExecutor(6) as pool:
            statuses = list(pool.map(lambda seed: running.post(asked(max_tokens=20, seed=seed))[0], range(6)))
        assert statuses == [200] * 6
    finally:
        running.close()
        pair.budget.limit = limited


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "99999"], "out of range"),
        (["--host", "0.0.0.0"], "give --api-key-file too"),
        (["--api-key-file", "nowhere"], "cannot be read"),
        (["--host", "256.0.0.1", "--api-key-file", "KEY"], "--host 256.0.0.1"),
    ],
)
def test_bad_options_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n", encoding="utf-8")
    key.chmod(0o600)
    assert main(["serve", *(str(key) if word == "KEY" else word for word in words)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_key_that_others_may_read_and_a_port_in_use_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef", encoding="utf-8")
    key.chmod(0o644)
    assert main(["serve", "--api-key-file", str(key)]) == 1
    assert "others may read it" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert "give another --port" in capsys.readouterr().err


def test_a_client_that_does_not_read_is_disconnected(pair: Pair) -> None:
    """Its answer holds the only place, which the next request waits for."""
    running = Running(pair, Limits(seconds=0.5), parallel=1)
    running.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    schema = {"type": "string", "minLength": 5000}
    form = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}
    body = json.dumps(asked(stream=True, n=4, max_tokens=1500, response_format=form)).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"Host: 127.0.0.1:{running.port}", f"Content-Length: {len(body)}"]
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.connect(("127.0.0.1", running.port))
            client.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            started = monotonic()
            assert running.post(asked(max_tokens=2))[0] == 200
            assert monotonic() - started < 60
            while running.service.running:
                sleep(0.05)
    finally:
        running.close()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {}, "messages"),
        ("chat/completions", {"model": "demo"}, "messages"),
        ("chat/completions", asked(temperature=-1), "temperature"),
        ("chat/completions", asked(messages=[{"role": 1}]), "messages[0].role"),
        ("chat/completions", asked(logit_bias={"1": 101}), "logit_bias.1"),
        ("chat/completions", asked(model="demo:other"), "model"),
        ("chat/completions", b"{", None),
        ("completions", {"model": "demo"}, "prompt"),
        ("responses", {"model": "demo", "input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_errors_name_the_field(path: str, body: object, param: str | None, server: Running) -> None:
    assert server.post(body, f"/v1/{path}")[1]["error"]["param"] == param
