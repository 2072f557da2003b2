"""`serve` under clients that send garbage, too much, too slowly, or leave: each is refused, and others are answered."""

import gc
import http.client
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.apps.serving import CHAT, LONG, Running, asked, held, streamed, wait_for

# isort: split
import edgedecode
from edgedecode import Pair
from edgedecode.apps.serve import application, connections
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.streams import Readers
from edgedecode.memory.process_memory import memory_now

SECONDS = 1.5
"""For a client to send a head, to send a body, and to read an event."""
MIB = 1 << 20


@pytest.fixture(scope="module")
def running(pair: Pair) -> Iterator[Running]:
    with Running(pair, Limits(most_nbytes=4 * MIB, seconds=SECONDS), parallel=2) as running:
        assert post(running, {"type": "boolean"}, most=8)[0] == 200  # what grammars share is leased from now on
        yield running


@pytest.fixture
def server(running: Running) -> Iterator[Running]:
    """Yield a server that afterwards answers, and holds what it held before."""
    settle(running)
    before = held(running.pair)
    yield running
    settle(running)
    with suppress(AssertionError):
        wait_for(lambda: held(running.pair) == before)
    assert held(running.pair) == before


def settle(running: Running) -> None:
    """Wait until nothing runs, of tests before this one either, answer a request, and close idle sessions."""
    gc.collect()  # sessions that tests of other files left open hold memory of the pair that all share
    wait_for(lambda: not running.service.running and not running.service.places.queued)
    running.answer(asked(max_tokens=2))
    while (idle := running.service._idle.oldest()) is not None:
        idle.close()


def post(server: Running, schema: Any, *, most: int = 20, strict: bool = False) -> tuple[int, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema, "strict": strict}}
    return server.post(asked(max_tokens=most, response_format=form, seed=1))


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


def request(data: bytes, *head: str) -> bytes:
    """Return a chat's request; the last one of its connection unless `head` says otherwise."""
    length = f"Content-Length: {len(data)}"
    lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", length, *(head or ("Connection: close",))]
    return "\r\n".join([*lines, "", ""]).encode() + data


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def all_of(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def closed(connection: socket.socket) -> bool:
    connection.settimeout(120)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def asks(**fields: object) -> bytes:
    return json.dumps(asked(seed=1, **fields)).encode()


def grown_nbytes(before: int) -> int:
    memory = memory_now()
    return (memory.anonymous or 0) - before


def anonymous_nbytes() -> int:
    return grown_nbytes(0)


# --- too much ---


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte_is_given_up_and_takes_no_memory(server: Running, *, chunked: bool) -> None:
    before, sent, most = anonymous_nbytes(), 0, 0
    head = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {1 << 30}"
    data = b"a" * MIB
    part = b"%x\r\n%s\r\n" % (len(data), data) if chunked else data
    with connect(server) as connection:
        connection.sendall(POST + f"{head}\r\n\r\n".encode())
        with suppress(ConnectionError):
            while sent < 1 << 30:
                connection.sendall(part)
                sent += len(data)
                most = max(most, grown_nbytes(before))
    assert sent < 64 * MIB
    assert most < 40 * MIB


def test_a_body_a_little_over_the_limit_is_refused_in_words(server: Running) -> None:
    assert server.refuses(b"x" * (4 * MIB + 1), status=413)["code"] == "too_large"


def test_thousands_of_headers_are_refused(server: Running) -> None:
    for lines in ([f"X-{number}: {number}" for number in range(5000)], [f"X: {'y' * 200_000}"]):
        with connect(server) as connection:
            with suppress(ConnectionError):
                connection.sendall(request(asks(max_tokens=2), "Connection: close", *lines))
            found = all_of(connection)
        assert not found or found.split(b" ")[1] in {b"400", b"431"}, found[:80]


# --- too slowly ---


def send_slowly(connection: socket.socket) -> None:
    for _ in range(900):  # fewer than the body has
        connection.sendall(b"P")
        sleep(SECONDS / 10)


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_client_that_sends_byte_by_byte_is_given_up(where: str, server: Running) -> None:
    with connect(server) as connection:
        if where == "body":
            connection.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        with pytest.raises(ConnectionError):
            send_slowly(connection)
        assert closed(connection) or where == "body"


def test_a_refused_body_does_not_keep_its_connection(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\nx")
        assert b" 421 " in all_of(connection)


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_reads_byte_by_byte_or_never_frees_its_place(pair: Pair, *, reads: bool) -> None:
    running = Running(pair, Limits(seconds=SECONDS), parallel=1)
    running.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    body = asks(stream=True, n=4, max_tokens=1500, response_format=LONG)
    left = threading.Event()
    with running, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(("127.0.0.1", running.port))
        client.sendall(request(body))

        def read() -> None:
            with suppress(OSError):
                while not left.wait(SECONDS / 20) and (not reads or client.recv(1)):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            running.answer(asked(max_tokens=2, seed=1))
            wait_for(lambda: not running.service.running)
        finally:
            left.set()
            reader.join()


def slow_client(server: Running, **fields: object) -> socket.socket:
    """Return the connection of a client that asks for a long stream, of which the system keeps little unread."""
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.settimeout(120)
    client.connect(("127.0.0.1", server.port))
    client.sendall(request(asks(**{"stream": True, "max_tokens": 1500, "response_format": LONG, **fields})))
    return client


def test_an_answer_that_is_not_read_ends_frees_its_place_and_is_there_later(pair: Pair) -> None:
    server = Running(pair, Limits(seconds=600.0), parallel=1)
    with server, slow_client(server, n=2) as client:
        wait_for(lambda: server.service.running)
        wait_for(lambda: not server.service.running)
        server.answer(asked(max_tokens=2, seed=1))
        found = all_of(client)
    assert b"[DONE]" in found
    assert len(found) > 150_000


@streamed
def test_a_client_that_never_reads_loses_its_connection(pair: Pair, *, stream: bool) -> None:
    server = Running(pair, Limits(seconds=SECONDS), parallel=1)
    with server, slow_client(server, n=4, stream=stream, logprobs=True, top_logprobs=20):
        wait_for(lambda: server.service.running)
        wait_for(lambda: not server._server.server_state.connections)


def test_of_clients_that_do_not_read_the_one_that_is_behind_the_most_is_cut_off(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "Readers", partial(Readers, most_nbytes=150_000))
    server = Running(pair, Limits(seconds=600.0), parallel=2)
    with server, slow_client(server, n=4) as behind:
        wait_for(lambda: server.service.running)
        with slow_client(server) as reading:
            assert b"[DONE]" in all_of(reading)
        wait_for(lambda: not server.service.running)
        assert b"[DONE]" not in all_of(behind)


def test_200_idle_connections_keep_nobody_waiting_and_are_closed(server: Running) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(200)]
        for connection in idle[::2]:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        for seed in range(3):
            server.answer(asked(max_tokens=2, seed=seed))
        assert all(closed(connection) for connection in idle)


def test_a_reply_does_not_wait_for_the_acknowledgement_of_its_head(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/health")
    connection.getresponse().read()
    sockets = [each.transport.get_extra_info("socket") for each in server.connections]
    assert sockets
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)
    connection.close()


def test_connections_beyond_the_most_are_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 10)
    with Running(pair, Limits(seconds=600.0)) as server, ExitStack() as stack:  # idle ones stay
        opened = [stack.enter_context(connect(server)) for _ in range(30)]
        assert all(closed(connection) for connection in opened[15:])


# --- not HTTP, or not meant for this server ---


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n\r\n",
        POST + b"Host: evil.example\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\nx",
        b"POST /v1/completions HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        POST + b"X: a\rb\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n : x\r\n\r\n",
        b"POST /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes, server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(data)
        found = all_of(connection)
    if found:
        head, _, body = found.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] in {b"400", b"421", b"501"}, head
        assert {*json.loads(body)["error"]} == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "localhost@evil.example", "evil.example:80", "localhost:80:80", "[::1",
     "127.0.0.1.evil.example", "", "localhost,evil.example", "2130706433", "0x7f.1", "LOCALHOST.", "lоcalhost"],
)  # fmt: skip
def test_other_names_in_the_host_header_are_refused(host: str, server: Running) -> None:
    lines = [b"GET /v1/models HTTP/1.1", b"Host: " + host.encode(), b"Connection: close", b"", b""]
    with connect(server) as connection:
        connection.sendall(b"\r\n".join(lines))
        status = all_of(connection).split(b" ", 2)[1]
    assert status in {b"421", b"400"}


def test_the_address_in_the_request_line_is_not_a_way_round_the_host_header(server: Running) -> None:
    for line in (b"GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example", b"GET /v1/models HTTP/1.0"):
        with connect(server) as connection:
            connection.sendall(line + b"\r\nConnection: close\r\n\r\n")
            assert all_of(connection).split(b" ", 2)[1] == b"421"


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    first, second = asks(max_tokens=3), asks(max_tokens=5)
    with connect(server) as connection:
        connection.sendall(request(first, "X: 1") + request(b"{", "X: 2") + request(second))
        found = all_of(connection)
    counts = [part[:1] for part in found.split(b'"completion_tokens":')[1:]]
    assert [line.split(b" ")[1] for line in found.split(b"HTTP/1.1")[1:]] == [b"200", b"400", b"200"]
    assert counts == [b"3", b"5"]


# --- clients that leave, files that vanish ---


@pytest.mark.parametrize("stage", ["before the head", "in the head", "in the body", "before the first token", "later"])
@streamed
def test_a_client_may_leave_at_any_stage(stage: str, server: Running, *, stream: bool) -> None:
    whole = request(asks(stream=stream, max_tokens=300, temperature=1))
    cut = {"before the head": 0, "in the head": 40, "in the body": len(whole) - 20}.get(stage, len(whole))
    for _ in range(6):
        with connect(server) as connection:
            connection.sendall(whole[:cut])
            if stage == "later" and stream:
                assert connection.recv(4000).startswith(b"HTTP/1.1 200")
            elif stage == "later":
                wait_for(lambda: server.service.running)
    wait_for(lambda: not server.service.running and not server.service.places.queued)


@streamed
def test_a_client_that_leaves_the_queue_makes_room_in_it(pair: Pair, *, stream: bool) -> None:
    with Running(pair, parallel=1, waiting=3) as running, connect(running) as busy:
        busy.sendall(request(asks(stream=True, max_tokens=4000, response_format=LONG)))
        wait_for(lambda: running.service.running)
        for _ in range(3):
            with ExitStack() as stack:
                for _ in range(3):
                    stack.enter_context(connect(running)).sendall(request(asks(stream=stream, max_tokens=5)))
                wait_for(lambda: running.service.places.queued == 3)
            wait_for(lambda: running.service.places.queued == 0)
            assert running.service.running == 1


def test_a_pack_that_is_removed_while_it_is_served(pack_copy: Path) -> None:
    """What is loaded goes on; what is loaded later is refused in words."""
    with edgedecode.load(pack_copy, runtime="onnx") as pair, Running(pair) as running:
        shutil.rmtree(pack_copy)
        for fields in ({}, {"model": "demo@switch"}, {"response_format": {"type": "json_object"}}) * 2:
            status, value = running.post(asked(max_tokens=5, seed=1, **fields))
            assert status == 200 or {*value["error"]} == {"message", "type", "param", "code"}, value
            assert "Traceback" not in json.dumps(value)
        running.answer(asked(max_tokens=5, seed=1))
