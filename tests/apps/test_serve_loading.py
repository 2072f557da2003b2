"""`serve`: streams of a model that is being loaded say so, and how far it is."""

import asyncio
import http.client
import json
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.apps.serving import CHAT, LONG, RESPONSES, asked, body, heard, wait_for
from tests.apps.test_serve_several import Several, folder, library, server

# isort: split

from edgedecode import Pair
from edgedecode.apps.serve import answering
from edgedecode.apps.serve.streams import EventStream, Readers

__all__ = ["folder", "library", "server"]
MESSAGES = asked()["messages"]


class Loading:
    """A server's connection while its model is loaded. parts: of a stream, as far as they were read."""

    def __init__(self, server: Several, path: str, model: str) -> None:
        server.slow.set()
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        given = body(CHAT, model=model, stream=True)
        if path == RESPONSES:
            given = body(RESPONSES, model=model, stream=True)
        elif path == "/completion":
            given = {"prompt": "Hi", "model": model, "n_predict": 4, "stream": True}
        self.connection.request("POST", path, json.dumps(given), {"Content-Type": "application/json"})
        self.reply = self.connection.getresponse()

    def line(self) -> bytes:
        return self.reply.readline()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/messages", "/completion"])
def test_a_stream_tells_how_far_its_model_is(server: Several, path: str) -> None:
    loading = Loading(server, path, "one")
    assert (loading.reply.status, loading.line()) == (200, b": loading one\n")
    progress = server.models._progress["one"]
    with progress.bar("preparing weights, MB", 8) as advance:
        advance(2)
        wait_for(lambda: loading.line() == b": loading one: preparing weights, 25%\n")
    server.slow.clear()
    rest = loading.reply.read().decode()
    pings = rest.count('data: {"type": "ping"}')
    assert pings >= 1 if path == "/v1/messages" else not pings
    events = [json.loads(line[6:]) for line in rest.splitlines() if line.startswith("data: {")]
    assert not any("error" in each for each in events)
    assert len(events) >= 3
    loading.connection.close()


def test_a_stream_whose_model_cannot_be_loaded_ends_with_an_error(server: Several, folder: Path) -> None:
    spoiled = shutil.copytree(folder / "one", folder / "spoilt")
    try:
        (spoiled / "tokenizer.json").write_text("{")
        for path in (CHAT, RESPONSES, "/v1/messages", "/completion"):
            loading = Loading(server, path, "spoilt")
            server.slow.clear()
            (said,) = [line for line in loading.reply.read().decode().splitlines() if "tokenizer.json" in line]
            assert '"error":{' in said
            loading.connection.close()
    finally:
        shutil.rmtree(spoiled)
    assert server.chat("one")


def test_a_client_that_leaves_while_its_model_is_loaded_leaves_it_idle(server: Several) -> None:
    loading = Loading(server, CHAT, "one")
    assert loading.line()
    loading.connection.close()
    server.slow.clear()
    wait_for(lambda: server.held == ["one"])
    wait_for(lambda: not server.models.loaded[0].users and not server.models.places.running)
    assert server.chat("one")


def test_a_stream_whose_model_is_there_says_that_it_is_loaded_no_more(pair: Pair) -> None:
    with Several(pair, parallel=1) as server:
        given = asked(model="demo", response_format=LONG, stream=True, max_tokens=4000, n=128)
        with server.client.chat.completions.create(**given) as busy:
            next(iter(busy))
            loading = Loading(server, CHAT, "one")
            server.slow.clear()
            wait_for(lambda: loading.line() == b": waiting for the model\n")
        assert b"[DONE]" in loading.reply.read()
        loading.connection.close()


def test_clients_stream_while_a_model_is_loaded(server: Several) -> None:
    anthropic = pytest.importorskip("anthropic")
    server.slow.set()
    threading.Timer(1.5, server.slow.clear).start()
    given = asked(model="one", max_tokens=4, stream=True)
    assert heard(server.client.chat.completions.create(**given)).text == server.chat("one", most=4)
    server.slow.set()
    threading.Timer(1.5, server.slow.clear).start()
    with (
        anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none") as client,
        client.messages.stream(model="two", max_tokens=4, messages=MESSAGES, extra_body={"temperature": 0}) as stream,
    ):
        assert stream.get_final_text() == server.chat("two", most=4)


@pytest.mark.parametrize("ticks", range(12))
def test_a_client_that_leaves_at_the_end_gives_its_model_back(ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client leaves a number of steps of the event loop after the last part, while the model is given back."""
    monkeypatch.setattr(answering, "_QUIET_SECONDS", 0.01)
    readers, given_back = Readers(seconds=60.0), list[int]()
    models = Mock(loaded=[], progress=lambda name: "", waits=lambda name: False)

    async def parts() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"

    async def made(ended: asyncio.Event) -> EventStream:
        await ended.wait()
        stack = AsyncExitStack()
        stack.callback(given_back.append, 1)
        return EventStream(parts(), stack, media_type="text/event-stream", readers=readers)

    async def leaves() -> None:
        ended = asyncio.Event()
        making = asyncio.create_task(made(ended))
        reply = Mock(waits=b": %b\n\n", media_type="text/event-stream", asked=Mock(notes=()))
        found = await answering.Answering(models, Mock(), readers)._while_loading(making, reply, "one")
        assert isinstance(found, EventStream)
        stream = asyncio.create_task(found._make())
        ended.set()
        await asyncio.wait({making})
        for _ in range(ticks):
            await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait({stream})
        await found.stack.aclose()

    asyncio.run(leaves())
    assert given_back == [1]
