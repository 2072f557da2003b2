"""How `serve` ends, also as a process, which chats keep their KV cache, its memory under load, and what is counted."""

import asyncio
import http.client
import json
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, LONG, Running, asked, held, read, serving, text_of, wait_for

# isort: split
import openai

from edgedecode import BudgetExceeded, Pair, SamplingOptions, Session, SessionDetails, SessionOptions
from edgedecode.apps.serve import running as running_module
from edgedecode.apps.serve.guards import Guards, Limits
from edgedecode.apps.serve.models import idle_sessions
from edgedecode.apps.serve.models.idle_sessions import IdleSession
from edgedecode.apps.serve.models.one import OneModel
from edgedecode.apps.serve.models.places import Places
from edgedecode.apps.serve.running import Service
from edgedecode.decoding.stats import Stats
from edgedecode.fair_lock import FairLock
from edgedecode.memory.process_memory import memory_of
from edgedecode.sessions.answer import Answer
from edgedecode.sessions.chunks import Chunk

CHILD = """
from time import sleep
from edgedecode.apps.serve.connections import ClosingServer
from edgedecode.apps.serve.running import Running
ClosingServer.grace_seconds, put = {}, Running._put
Running._put = lambda self, *given: (sleep(0.05), put(self, *given))
"""
"""Code of the process: the grace time, and chunks that are slow enough not to end within the test."""


@pytest.fixture
def server(pair: Pair) -> Iterator[Running]:
    """A fresh one, whose counts are 0."""
    with Running(pair, parallel=2) as running:
        yield running


def opened(address: str, **fields: object) -> Any:
    data = json.dumps(asked(max_tokens=4000, response_format=LONG, **fields)).encode()
    return urllib.request.urlopen(urllib.request.Request(f"{address}{CHAT}", data), timeout=120)


def counted(address: str, name: str) -> int:
    """Return a figure of /memory."""
    with urllib.request.urlopen(f"{address}/memory", timeout=120) as reply:
        return int(json.load(reply)[name])


def closing(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/health", timeout=120).close()
    except urllib.error.HTTPError as refused:
        with refused:
            return json.load(refused) == {"status": "closing"}
    return False


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_stream_ends_in_words_when_the_server_closes(signals: list[signal.Signals], tmp_path: Path) -> None:
    """After the grace time, or before its end at the second signal; requests that wait are refused meanwhile."""
    messages, grace = tmp_path / "messages", 5.0 if len(signals) == 1 else 3600.0  # or the answer ends by itself
    with serving("--parallel", "1", errors=messages, before=CHILD.format(grace)) as (process, address):
        stream = opened(address, stream=True)
        assert stream.readline().startswith(b"data: ")
        waiting: list[int] = []

        def wait() -> None:
            try:
                opened(address)
            except urllib.error.HTTPError as error:
                waiting.append(error.code)

        waits = threading.Thread(target=wait)
        waits.start()
        wait_for(lambda: counted(address, "requests_waiting") == 1)
        process.send_signal(signals[0])
        wait_for(lambda: closing(address))
        for each in signals[1:]:
            process.send_signal(each)
        *_, error, done = [line for line in stream.read().split(b"\n\n") if line]
        assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "the server is closing"
        assert done == b"data: [DONE]"
        stream.close()
        assert process.wait(timeout=120) == 128 + signals[-1]
        waits.join()
        assert waiting == [503]
    assert messages.read_text(encoding="utf-8") == ""


def test_openais_client_is_told_that_the_server_closes(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    with serving(errors=messages, before=CHILD.format(0.2)) as (process, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(**asked(max_tokens=4000, response_format=LONG, stream=True))
        next(stream)
        found: list[int] = []

        def whole() -> None:
            with pytest.raises(openai.InternalServerError) as refused:
                client.chat.completions.create(**asked(max_tokens=4000, response_format=LONG))
            found.append(refused.value.status_code)

        other = threading.Thread(target=whole)
        other.start()
        wait_for(lambda: counted(address, "answers_running") == 2)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="the server is closing"):
            list(stream)
        other.join()
        client.close()
        assert found == [503]
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert messages.read_text(encoding="utf-8") == ""


def test_a_reply_that_is_cancelled_stops_its_answer(server: Running) -> None:
    """uvicorn cancels what has not ended in time."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", CHAT, json.dumps(asked(max_tokens=4000, response_format=LONG)))
    wait_for(lambda: server.service.running)
    loop = next(iter(server.service._answers))._loop
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in server._server.server_state.tasks])
    wait_for(lambda: not server.service.running)
    connection.close()


@pytest.mark.parametrize("begins", [0.0, 0.3])
def test_an_answer_is_stopped_in_its_prefill(begins: float) -> None:
    """Its first chunk takes forever. begins: seconds until there is an answer that could be stopped."""

    def prefill() -> Generator[Chunk | None]:
        while True:
            sleep(0.01)
            yield None

    def start(_: Any) -> Answer:
        sleep(begins)
        return Answer(prefill(), stats=Stats(), turn=FairLock(), own=FairLock())

    async def stops() -> None:
        running = running_module.Running(cast("Any", None), start)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            await running.stop()
            assert [piece async for piece in running.pieces()] == []

    asyncio.run(stops())


class Chat:
    """A conversation; `say` returns how many of its tokens were cached."""

    def __init__(self, server: Running, system: str) -> None:
        self._server = server
        self._messages = [{"role": "system", "content": system}]

    def say(self, text: str) -> int:
        self._messages.append({"role": "user", "content": text})
        reply = self._server.answer(asked(messages=self._messages, max_tokens=8))
        self._messages.append({"role": "assistant", "content": text_of(reply)})
        return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_chats_with_the_same_system_message_keep_their_caches(server: Running) -> None:
    one, other = (Chat(server, "You are a kind assistant.") for _ in range(2))
    cached = [(one.say(f"Tell me about duck {turn}."), other.say(f"And lake {turn}?")) for turn in range(4)]
    for before, after in pairwise(cached[1:]):
        assert 0 < before[0] < after[0]
        assert 0 < before[1] < after[1]


def test_the_newest_chats_are_kept(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_sessions, "_MOST", 2)
    chats = [Chat(server, f"You are number {number}.") for number in range(4)]
    for chat in chats:
        chat.say("Who are you?")
    assert len(server.service._idle._every) == 2
    assert chats[-1].say("And then?") > 10
    assert len(server.service._idle._every) == 2


def test_a_seed_without_sampling_keeps_the_cache(server: Running) -> None:
    ask = asked(max_tokens=2, seed=5, temperature=0)
    first, second = (server.answer(ask) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert text_of(second) == text_of(first)


def complete(server: Running, prompt: object) -> tuple[str, int]:
    """Return a completion and how many of the prompt's tokens were cached."""
    reply = server.answer({"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}, COMPLETIONS)
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("ids", [False, True], ids=["text", "tokens"])
def test_a_completion_reuses_what_an_earlier_one_began_with(server: Running, ids: bool) -> None:
    def prompt(text: str) -> object:
        return server.pair.tokenizer.encode(text) if ids else text

    file, other = "A frog sat by the pond and looked at the", "Two ships left the harbour early in the morning, and"
    assert complete(server, prompt(file))[1] == complete(server, prompt(other))[1] == 0
    for changed in (f"{file} water, and", f"{file} water. It", f"{file[:30]} saw"):
        text, cached = complete(server, prompt(changed))
        assert cached > 5
        with server.pair.session(SessionOptions(sampling=SamplingOptions(temperature=0))) as session:
            lone = session.complete(server.pair.tokenizer.encode(changed) if ids else changed, max_tokens=4)
            assert text == session.collect(lone).text
    assert complete(server, prompt(other))[1] > 5  # it kept its own


def test_a_session_that_does_not_close_keeps_no_place(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    close = Session.close

    def fails(self: Session) -> None:
        close(self)
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", fails)
        assert [server.post(asked(max_tokens=2, seed=1, temperature=1))[0] for _ in range(3)] == [500] * 3
    assert server.service.running == 0
    server.answer(asked(max_tokens=2, seed=1, temperature=1))
    assert server.count(f'edgedecode_requests_total{{path="{CHAT}",status="500"}}') == 3


def test_a_session_that_cannot_be_reset_is_closed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer(asked(max_tokens=2, seed=1, temperature=1))
    before = held(server.pair)
    chat = Chat(server, "You are a kind assistant.")
    chat.say("Who are you?")
    assert held(server.pair) != before
    monkeypatch.setattr(Session, "reset", Mock(side_effect=RuntimeError("no")))
    with pytest.raises(AssertionError):
        chat.say("And then?")
    wait_for(lambda: held(server.pair) == before)


def test_refusals_of_the_guards_are_counted(server: Running) -> None:
    assert server.post(asked(), Host="evil.example")[0] == 421
    assert server.post(asked(), path="/no/such/path")[0] == 404
    assert server.count(f'edgedecode_requests_total{{path="{CHAT}",status="421"}}') == 1
    assert server.count('edgedecode_requests_total{path="other",status="404"}') == 1


@pytest.mark.parametrize("given", ["fd00:0:0::5", "FD00::5", "[fd00::5]"])
@pytest.mark.parametrize("sent", ["[fd00::5]:8000", "[fd00::5]", "[FD00:0::5]:80"])
def test_an_ipv6_address_is_its_own_host(given: str, sent: str) -> None:
    async def app(*_: object) -> None: ...

    guards = Guards(app, limits=Limits(hosts=(given,)))
    assert guards._refusal("/", {b"host": sent.encode()}) is None
    assert guards._refusal("/", {b"host": b"[fd00::6]:8000"}) is not None


def test_an_answer_without_a_chunk_ends_twice(pair: Pair) -> None:
    """The stream asks again for pieces after the first was missing."""

    async def ends() -> None:
        models = OneModel(Service(pair, SessionOptions(), Places(parallel=1, waiting=1, patience=5.0)))
        with pair.session(SessionOptions()) as session:

            def start(_: Any) -> Any:
                answer = session.stream("hello")
                answer.close()
                return answer

            running = running_module.Running(session, start)
            async with asyncio.timeout(60):
                assert [piece async for piece in running.pieces()] == []
                assert [piece async for piece in running.pieces()] == []
                await running.stop()
        await models.close()

    asyncio.run(ends())


def test_an_answer_ends_when_its_event_loop_is_closed(pair: Pair) -> None:
    """As in a server that stops before its answers: the thread neither fails nor goes on to the limit."""
    with pair.session(SessionOptions(details=SessionDetails(ignore_eos=True))) as session:
        begun, closed = threading.Event(), threading.Event()

        def start(_: Any) -> Any:
            answer = session.stream("Tell me a story.", max_tokens=1500)
            begun.set()
            closed.wait(60)
            return answer

        async def leaves() -> running_module.Running:
            running = running_module.Running(session, start)
            await asyncio.to_thread(begun.wait, 60)
            return running

        running = asyncio.run(leaves())
        closed.set()
        running._thread.join(60)
        assert not running._thread.is_alive()
        assert running.stats().tokens < 100


def ask(address: str, seed: int) -> int:
    data = json.dumps(asked(seed=seed, max_tokens=40)).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}{CHAT}", data), timeout=120) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_process_stays_within_the_budget_under_load() -> None:
    """More sessions than the budget holds, opened and closed in many threads."""
    limit = 230_000_000
    with serving("--memory", "230MB", "--parallel", "16") as (process, address):
        most = 0
        with ThreadPoolExecutor(24) as pool:
            requests = [pool.submit(ask, address, seed) for seed in range(160)]
            while wait(requests, timeout=0.02).not_done:
                found = memory_of(process.pid)
                most = max(most, 0 if found is None or found.anonymous is None else found.anonymous)
        assert {each.result() for each in requests} == {200}
        assert 0 < most <= limit


def test_a_signal_ends_the_server_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's experience is stored, as after Ctrl-C."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    with serving(errors=tmp_path / "messages") as (process, address):
        assert ask(address, 1) == 200
        assert not list((tmp_path / "cache" / "costs").glob("*"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert list((tmp_path / "cache" / "costs").glob("*.json"))
    assert "Traceback" not in (tmp_path / "messages").read_text(encoding="utf-8")


@pytest.mark.parametrize("closes", [False, True])
def test_a_request_is_not_refused_for_room_that_others_took(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Another answer ends before its refusal is looked at, time after time, or another request closes a session."""
    refusals, real = list[int](), pair.session

    async def answers() -> None:
        places, loop = Places(parallel=2, waiting=2, patience=60.0), asyncio.get_running_loop()
        service = Service(pair, SessionOptions(), places)
        closing = Mock(**{"close.side_effect": lambda: wait_for(lambda: len(refusals) >= 4)})
        if closes:
            service._idle.add(IdleSession(SessionOptions(), closing, -1, None))

        def session(*given: Any, **more: Any) -> Session:
            if len(refusals) < 4:
                refusals.append(1)
                if not closes:
                    asyncio.run_coroutine_threadsafe(places.announce(), loop).result(60)
                raise BudgetExceeded("no memory", table="")
            return real(*given, **more)

        async def ask() -> None:
            async with service.answering(read({"role": "user", "content": "Hi"}, max_tokens=1)) as running:
                assert [piece async for piece in running.pieces()]

        with monkeypatch.context() as patch:
            patch.setattr(pair, "session", session)
            await asyncio.gather(*(ask() for _ in range(1 + closes)))
        await OneModel(service).close()

    asyncio.run(answers())
