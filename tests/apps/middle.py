"""Servers between a device and a target's server, with faults; and servers of other kinds that answer with a pair."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any

import numpy as np

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.engines.target_server import TargetServer
from edgedecode.open_pack import LoadOptions
from tests.apps.serving import STORY

GREEDY = SamplingOptions(temperature=0.0)
VERIFY = "/v1/verify"
Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""(path, body) → the status and the reply: JSON, or bytes as they are."""


def remote(url: str | int, **options: Any) -> Pair:
    """Open the bundled pack, whose model drafts, with its target on a server."""
    address = f"http://127.0.0.1:{url}" if isinstance(url, int) else url
    return edgedecode.load(options=LoadOptions(server=TargetServer(address, **options)))


def text_of(pair: Pair, prompt: str = STORY, *, most: int = 32, **options: Any) -> str:
    with pair.session(SessionOptions(**{"seed": 3, "sampling": GREEDY, **options})) as session:
        return session.generate(prompt, max_tokens=most).text


def prompt_of(pair: Pair) -> list[int]:
    """Return the tokens of a chat's prompt, whose answer is long."""
    with pair.session(SessionOptions(sampling=GREEDY, drafter="none")) as session:
        session.generate(STORY, max_tokens=1)
        return [*session.tokens[: session.stats.prompt_tokens]]


@contextmanager
def answering(answer: Answer, *, location: str = "") -> Iterator[str]:
    """Run a server, and yield its address. location: the header of redirects."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else {}
            status, reply = answer(self.path, body)
            if status == 0:  # it goes, having sent a part or nothing
                self.wfile.write(reply)
                self.close_connection = True
                return
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forwarded(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return what the server at a port answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if body:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        else:
            connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def delayed(port: int, seconds: float) -> Answer:
    """Return a server's answers, each delayed."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        sleep(seconds)
        return forwarded(port, path, body)

    return answer


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Others:
    """The replies of SGLang, in the shape that its documents show, and those of vLLM (0.32.0) and llama-server
    (0.5.0-dev, 0c1e570), as they answer, from a pair's target."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.paths: list[str] = []

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.paths.append(path)
        if path == "/tokenize":
            ids = self._pair.tokenizer.encode(body.get("prompt", body.get("content")))
            return 200, {"tokens": ids, "count": len(ids), "max_model_len": 512}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "demo", "object": "model", "max_model_len": 512}]}
        if path in ("/get_server_info", "/props"):
            return 200, {"context_length": 512, "default_generation_settings": {"n_ctx": 512}}
        return 200, {"/generate": self._sglang, "/v1/completions": self._vllm, "/completion": self._llama}[path](body)

    def _rows(self, tokens: list[int], count: int) -> FloatArray:
        """Return the log probabilities after each of the last tokens."""
        state = self._pair.target.new_state(512, rows=count)
        rows = range(len(tokens) - count, len(tokens))

        def read() -> FloatArray:
            return self._pair.target.forward(tokens, state, rows=rows).logits.copy()

        logits = self._pair.turn.run(read)
        state.close()
        exact = logits.astype(np.float64)
        return np.asarray(exact - np.log(np.exp(exact).sum(axis=1, keepdims=True)), np.float32)

    def _sglang(self, body: dict[str, Any]) -> Any:
        tokens, top = body["input_ids"], body["top_logprobs_num"]
        count = len(tokens) - body["logprob_start_len"]
        assert body["return_logprob"]
        assert body["sampling_params"]["max_new_tokens"] == 1

        def likeliest(row: FloatArray) -> list[list[Any]]:
            return [[float(row[id]), int(id), None] for id in np.argsort(-row, kind="stable")[:top]]

        rows = [likeliest(row) for row in self._rows(tokens, count)]
        # The entry of an input token predicts that token; the first one of a range has none.
        meta = {
            "input_top_logprobs": [None, *rows[:-1]],
            "output_top_logprobs": [rows[-1]],
            "prompt_tokens": len(tokens),
        }
        return {"text": "", "meta_info": meta}

    def _vllm(self, body: dict[str, Any]) -> Any:
        tokens, top = body["prompt"], body["prompt_logprobs"]
        rows = self._rows(tokens, min(len(tokens), 17))
        entries: list[Any] = [None] * (len(tokens) - len(rows) + 1)
        for row, token in zip(rows[:-1], tokens[len(tokens) - len(rows) + 1 :], strict=True):
            order = np.argsort(-row, kind="stable")
            ids = [*order[:top], *([token] if token not in order[:top] else [])]
            rank = {int(id): int(place) + 1 for place, id in enumerate(order)}
            entries.append(
                {str(id): {"logprob": float(row[id]), "rank": rank[int(id)], "decoded_token": ""} for id in ids}
            )
        last = {f"token_id:{id}": float(rows[-1][id]) for id in np.argsort(-rows[-1], kind="stable")[:top]}
        choice = {"index": 0, "text": "", "prompt_logprobs": entries, "logprobs": {"top_logprobs": [last]}}
        return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}

    def _llama(self, body: dict[str, Any]) -> Any:
        tokens = list(body["prompt"])
        if body.get("stream"):
            assert body["temperature"] == 0
            events, content = [], b""
            for count in range(1, min(body["n_predict"], 8) + 1):
                tokens.append(int(self._rows(tokens, 1)[0].argmax()))
                content += self._pair.tokenizer.token_bytes(tokens[-1])
                if _is_whole(content):  # else the id is in no event
                    event = {"content": content.decode(), "tokens": tokens[-1:], "stop": False}
                    events.append({**event, "tokens_predicted": count})
                    content = b""
            every = [*events, {"content": "", "tokens": [], "stop": True, "tokens_predicted": count}]
            return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in every)
        assert body["n_predict"] == 1
        (row,) = self._rows(tokens, 1)
        drawn = row.copy()
        drawn[[id for id, _ in body["logit_bias"]]] = -np.inf
        if not _is_whole(self._pair.tokenizer.token_bytes(int(drawn.argmax()))):
            return {"content": "", "tokens": [int(drawn.argmax())]}
        tops = [
            {"id": int(id), "token": "", "bytes": [], "logprob": float(row[id])}
            for id in np.argsort(-row, kind="stable")[: body["n_probs"]]
        ]
        return {"content": "", "completion_probabilities": [{**tops[0], "top_logprobs": tops}]}
