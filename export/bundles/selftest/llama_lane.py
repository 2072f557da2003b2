"""llama.cpp's lane: the stock `llama-server`, started with the arguments in the bundle."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, perf_counter, sleep
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from edgedecode.errors import EdgeDecodeError

from ..bundle import Bundle
from .lane import Answered, LaneResult, Options

_START_SECONDS, _ANSWER_SECONDS = 300, 600
_CANDIDATES = 20
"""Likeliest tokens that the server is asked for; an expected one below them counts as far off."""
_FAR = 99.0


class ServerError(EdgeDecodeError):
    """The server ended, or did not answer."""


class LlamaLane:
    """llama-server on this machine."""

    name = "llama"
    description = "llama.cpp's llama-server"

    def suits(self, bundle: Bundle) -> bool:
        return "llama-server" in bundle.commands

    def missing(self, options: Options) -> str:
        if options.server is not None:
            return "" if options.server.is_file() else f"{options.server} is not a file: give llama-server's"
        if shutil.which("llama-server") is None:
            return "llama-server is not on PATH: build llama.cpp, or give --llama-server FILE"
        return ""

    def run(self, root: Path, bundle: Bundle, options: Options) -> LaneResult:
        program = str(Path(options.server or shutil.which("llama-server") or "").absolute())
        started = perf_counter()
        try:
            prompts = json.loads((root / bundle.selftest.prompts).read_text(encoding="utf-8"))["prompts"]
            expected = json.loads((root / bundle.selftest.expected).read_text(encoding="utf-8"))["answers"]
            with _serving(program, root.resolve(), bundle, options) as server:
                answers = [server.answered(one, wanted) for one, wanted in zip(prompts, expected, strict=True)]
                version = server.version
        except ServerError as error:
            return LaneResult(self.name, reason=str(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return LaneResult(self.name, reason=f"the self-test or the server's reply has another form ({error!r})")
        tolerance = bundle.plan.tolerance["llama"]
        reason = ""
        if bundle.plan.draft_length and not any(each.accepted for each in answers):
            reason = "the server accepted no draft: it does not speculate with these arguments"
        return LaneResult(self.name, version, answers, tolerance, round(perf_counter() - started, 2), reason)


class Server:
    """A running server."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: IO[bytes], ends: Sequence[int]) -> None:
        self._port, self._process, self._log, self._ends = port, process, log, ends

    @property
    def version(self) -> str:
        """The server's build, as it names it."""
        return str(self._get("/props").get("build_info", "llama-server"))

    def answered(self, prompt: Mapping[str, Any], wanted: Sequence[int]) -> Answered:
        """Answer one of the self-test's prompts greedily, and score the expected answer where the two differ."""
        reply = self._complete(prompt["tokens"], prompt["most"])
        tokens = [int(token) for token in reply["tokens"]]
        if tokens and tokens[-1] not in self._ends and wanted[-1:] and wanted[-1] in self._ends:
            wanted = wanted[:-1]  # the server leaves the end token out
        same = next((i for i, pair in enumerate(zip(tokens, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
        gaps = [self._gap([*prompt["tokens"], *wanted[:place]], wanted[place]) for place in range(same, len(wanted))]
        timings = reply.get("timings", {})
        return Answered(
            prompt["name"], len(wanted), tokens == list(wanted), True, max(gaps, default=0.0),
            int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0)),
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until the models are loaded. Raises ServerError."""
        deadline = monotonic() + _START_SECONDS
        while monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"llama-server ended with exit code {self._process.returncode}: {self._last_line()}")
            with suppress(ServerError):
                self._get("/health")
                return
            sleep(0.1)
        raise ServerError(f"llama-server was not ready within {_START_SECONDS} s")

    def _gap(self, tokens: Sequence[int], wanted: int) -> float:
        """Return how far a next token is below the likeliest."""
        reply = self._complete(tokens, 1, n_probs=_CANDIDATES)
        found = reply["completion_probabilities"][0]["top_logprobs"]
        chances = {int(each["id"]): float(each["logprob"]) for each in found}
        return max(chances.values()) - chances[wanted] if wanted in chances else _FAR

    def _complete(self, tokens: Sequence[int], most: int, **more: object) -> dict[str, Any]:
        body = {"prompt": list(tokens), "n_predict": most, "temperature": 0, "return_tokens": True, **more}
        return self._ask(Request(self._url("/completion"), json.dumps(body).encode(), _JSON))

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask(Request(self._url(path)))

    def _ask(self, request: Request) -> dict[str, Any]:
        try:
            with urlopen(request, timeout=_ANSWER_SECONDS) as reply:
                found: dict[str, Any] = json.loads(reply.read())
                return found
        except HTTPError as error:
            raise ServerError(
                f"llama-server answered {error.code}: {error.read(300).decode('utf-8', 'replace')}"
            ) from None
        except (URLError, OSError, ValueError) as error:
            raise ServerError(f"llama-server did not answer ({error}): {self._last_line()}") from None

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


_JSON = {"Content-Type": "application/json"}


@contextmanager
def _serving(program: str, root: Path, bundle: Bundle, options: Options) -> Iterator[Server]:
    """Start the server in the bundle with its arguments, on a free port of this machine."""
    words = list(bundle.commands["llama-server"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words[words.index("--port") + 1] = str(port)
    words[words.index("--threads") + 1] = str(options.threads or min(bundle.plan.threads, os.cpu_count() or 1))
    with TemporaryFile() as log:
        try:
            process = subprocess.Popen([program, *words], cwd=root, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise ServerError(f"{program} does not start: {error.strerror or error}") from None
        try:
            server = Server(port, process, log, bundle.generation.end_token_ids)
            server.wait()
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
