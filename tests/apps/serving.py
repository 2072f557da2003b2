"""Servers for the tests of `serve`, in a thread or a process, and their requests.

Importing this skips a file where an extra or the bundled pack is missing.
"""

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from edgedecode import Pair, SamplingOptions, SessionOptions

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("llguidance", reason="the structured extra is not installed")

import openai
import uvicorn

from edgedecode.apps.serve.anthropic.bodies import read_messages
from edgedecode.apps.serve.application import create_app
from edgedecode.apps.serve.connections import server_config
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.models.one import Models, OneModel
from edgedecode.apps.serve.models.places import Places
from edgedecode.apps.serve.requests.asked import Asked
from edgedecode.apps.serve.requests.openai import read_chat
from edgedecode.apps.serve.requests.tool_fields import ToolBody
from edgedecode.apps.serve.requests.tools import Tools, read_tools
from edgedecode.apps.serve.responses.bodies import read_response
from edgedecode.apps.serve.running import Service
from edgedecode.typed_json import typed

CHAT, COMPLETIONS, RESPONSES = PATHS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
STORY = "Tell me a story about a duck named Maya."
QUESTION = "Will it rain in Athens on Monday?"
USER = {"role": "user", "content": "Hi"}
KEY = "a-key-of-the-tests"
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["Oslo", "Rome", "Athens"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
FLAT: list[dict[str, Any]] = [{"type": "function", **tool["function"]} for tool in TOOLS]
"""The same functions in the form of responses."""
OFFERED = [
    {"name": each["function"]["name"], "input_schema": each["function"].get("parameters", {"type": "object"})}
    for each in TOOLS
]
"""The functions of `TOOLS` in Anthropic's form."""
RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_requests.json").read_text("utf-8"))
"""Requests of programs that ran against the server, by their names: `path` and `body`."""
LONG = {"type": "json_schema", "json_schema": {"name": "long", "schema": {"type": "string", "minLength": 50_000}}}
"""The form of an answer that does not end within a test."""
LLAMAS = ("/completion", "/infill", "/tokenize", "/detokenize", "/apply-template")
ERRORS: dict[str, set[str]] = {
    "/api/": {"message"},
    "/v1/messages": {"message", "type"},
    **{path: {"message", "type", "code"} for path in LLAMAS},
    "/": {"message", "type", "param", "code"},
}
"""What errors have, by the beginnings of paths. Ollama's is a text."""
streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Running:
    """A server in a thread, on a free port, while it is entered."""

    def __init__(
        self,
        pair: Pair,
        limits: Limits | None = None,
        *,
        parallel: int = 4,
        waiting: int = 64,
        options: SessionOptions | None = None,
        several: Callable[[Places], Models] | None = None,
        verifies: bool = False,
    ) -> None:
        """several: makes the models in the place of `pair`."""
        self._verifies = verifies
        self.pair, self._several = pair, several
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self._made = threading.Event()
        self._settings = limits or Limits(), parallel, waiting, options or SessionOptions()
        self.note = ""
        """What the last reply of `post` says was not followed."""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Running":
        self._thread.start()
        self._made.wait()
        wait_for(lambda: self._server.started)
        address = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=address, api_key=self._settings[0].key or "none")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()

    @property
    def connections(self) -> list[Any]:
        """Those that are open."""
        return list(self._server.server_state.connections)

    def _run(self) -> None:
        async def serve() -> None:
            limits, parallel, waiting, options = self._settings
            places = Places(parallel=parallel, waiting=waiting, patience=60.0)
            self.service = Service(self.pair, options, places)
            one = OneModel(self.service, strict=limits.strict_model)
            app = create_app(one if self._several is None else self._several(places), limits, verifies=self._verifies)
            self._server = uvicorn.Server(server_config(app, seconds=limits.seconds, log_level="critical"))
            self._made.set()
            await self._server.serve(sockets=[self.socket])

        asyncio.run(serve())

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Send a request; return the reply, which has been read: its text is `text`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        reply: Any = connection.getresponse()
        reply.text = reply.read().decode()
        connection.close()
        return reply

    def get(self, path: str, **headers: str) -> Any:
        return self.send("GET", path, **headers)

    def post(self, body: object, path: str = CHAT, **headers: str) -> tuple[int, Any]:
        """Send a request with the key; return the status and the JSON of the reply."""
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"} | headers
        reply = self.send("POST", path, body, **given)
        self.note = reply.headers.get("Edgedecode-Note", "")
        return reply.status, json.loads(reply.text)

    def answer(self, body: object, path: str = CHAT) -> Any:
        """Return the reply to a request that is taken."""
        status, reply = self.post(body, path)
        assert status == 200, reply
        return reply

    def refuses(
        self, body: object, said: str = "", path: str = CHAT, *, status: int = 400, kind: str = ""
    ) -> dict[str, Any]:
        """Check that a request is refused with an error in its API's form that says so; return the error.

        kind: its type.
        """
        found, reply = self.post(body, path)
        assert found == status, reply
        error = error_of(reply, path)
        assert said in error["message"], error
        assert not kind or error["type"] == kind
        return error

    def count(self, name: str) -> int:
        """Return a counter of /metrics."""
        text = self.get("/metrics", Authorization=f"Bearer {KEY}").text
        return int(text.split(f"\n{name} ")[1].split()[0])


def error_of(reply: Any, path: str) -> dict[str, Any]:
    """Return the error that a reply has, which is one line in the form of the path's API."""
    fields = next((fields for start, fields in ERRORS.items() if path.startswith(start)), ERRORS["/"])
    error: dict[str, Any] = reply["error"] if fields != {"message"} else {"message": reply["error"]}
    assert ({*error}, {*reply}) == (fields, {"error", "type"} if path.startswith("/v1/messages") else {"error"})
    assert "\n" not in error["message"]
    return error


def asked(**fields: object) -> dict[str, Any]:
    """Return the body of a chat."""
    return {"model": "demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0, **fields}


def body(path: str, text: str = STORY, /, most: int | None = 6, **fields: object) -> dict[str, Any]:
    """Return a body for any path that answers, but llama-server's. most: tokens of the answer."""
    name = {COMPLETIONS: "prompt", "/api/generate": "prompt", RESPONSES: "input"}.get(path)
    given: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if name is None else {name: text}
    if path.startswith("/api/"):
        return {"model": "demo", "stream": False, "options": {"temperature": 0, "num_predict": most}, **given, **fields}
    limit = {} if most is None else {"max_output_tokens" if path == RESPONSES else "max_tokens": most}
    return {"model": "demo", "temperature": 0, **given, **limit, **fields}


def text_of(reply: Any) -> str:
    """Return the text of a reply to a `body`."""
    if "output" in reply or "content" in reply:
        return str((reply.get("output") or [reply])[0]["content"][0]["text"])
    if "response" in reply or "message" in reply:
        return str(reply["response"] if "response" in reply else reply["message"]["content"])
    choice = reply["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def read(*messages: dict[str, Any], **more: Any) -> Asked:
    """Read a chat of these messages."""
    return read_chat(json.dumps({"messages": [*messages], **more}).encode(), SamplingOptions())


def read_blocks(*messages: dict[str, Any], **fields: Any) -> Asked:
    """Read messages in Anthropic's form."""
    return read_messages(json.dumps({"messages": messages, **fields}).encode(), SamplingOptions())


def read_items(*items: dict[str, Any], **more: Any) -> Asked:
    """Read a body of responses with these items."""
    return read_response(json.dumps({"input": [*items], **more}).encode(), SamplingOptions())


def offered(tools: object, choice: str | None = None, **options: Any) -> Tools:
    """Read tools as a body has them."""
    found = read_tools(typed(tools, list[ToolBody], "tools"), choice, **options)
    assert found is not None
    return found


@dataclass(frozen=True)
class Heard:
    """What a chat's first choice says. parts: of a stream."""

    text: str
    calls: list[Any]
    reason: str
    parts: int

    @property
    def arguments(self) -> list[tuple[str, str]]:
        return [(call.function.name, call.function.arguments) for call in self.calls]


def heard(reply: Any) -> Heard:
    """Return what a reply of OpenAI's client says, whole or streamed."""
    choices = [reply.choices[0]] if hasattr(reply, "choices") else [part.choices[0] for part in reply]
    said = [getattr(choice, "delta", None) or choice.message for choice in choices]
    text, calls = (
        "".join(each.content or "" for each in said),
        [call for each in said for call in each.tool_calls or []],
    )
    return Heard(text, calls, choices[-1].finish_reason, len(choices))


def lone(pair: Pair, text: str = STORY, *, seed: int | None = None, temperature: float = 0.0, most: int) -> str:
    """Return the answer of a session."""
    options = SessionOptions(sampling=SamplingOptions(temperature=temperature), seed=seed)
    with pair.session(options) as session:
        return session.generate(text, max_tokens=most).text


def wait_for(condition: Callable[[], object]) -> None:
    deadline = monotonic() + 120
    while not condition():
        assert monotonic() < deadline
        sleep(0.02)


def held(pair: Pair) -> dict[str, int]:
    """Return the leased bytes by holder."""
    found: dict[str, int] = {}
    for lease in pair.budget.leases:
        found[lease.name] = found.get(lease.name, 0) + lease.nbytes
    return found


@contextmanager
def serving(
    *words: str, models: Sequence[str] = ("demo",), errors: Path | None = None, before: str = ""
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `edgedecode serve` on a free port; yield the process and its address. errors: receives its messages.

    before: Python code to run first.
    """
    program = f"{before}\nimport sys; from edgedecode.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--runtime", "onnx", *models, *words]
    with open(errors or os.devnull, "w", encoding="utf-8") as messages:  # a pipe that nobody reads would fill
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        try:
            lines = iter(process.stdout.readline, "")
            line = next((line for line in lines if line.rstrip().endswith("/v1")), None)
            assert line is not None, f"the server ended with {process.wait()}"
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            process.kill()
            process.communicate()
