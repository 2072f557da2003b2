"""A peer in a child process, which answers one prompt at a time: its memory, threads and crashes stay separate."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from edgedecode import RuntimeUnavailable
from edgedecode.engines.child import child_command, signal_name

from .peer import Answer, PeerOrder

OPEN_SECONDS = 600.0
ANSWER_SECONDS = 300.0
_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "PYTHONWARNINGS": "ignore"}


class PeerProcess:
    """A running peer. Raises RuntimeUnavailable with the reason if it refuses, dies or does not answer in time.

    python: the command of the child process, which tests replace.
    """

    def __init__(self, order: PeerOrder, *, python: Sequence[str] | None = None, patience: float | None = None) -> None:
        self.name = order.name
        self._patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        command = python or child_command(f"{__package__}.peer_child:main")
        assert command is not None, "bench needs a Python interpreter for its child processes"
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | _ENVIRONMENT,
            encoding="utf-8",
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            opened = self._ask(asdict(order), seconds=OPEN_SECONDS)
        except BaseException:
            self.close()
            raise
        self.setting = str(opened["setting"])
        self.modes = tuple(str(mode) for mode in opened["modes"])

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        """Return the peer's greedy answer to a prompt of token ids, at most `count` tokens."""
        request = {"mode": mode, "prompt": list(prompt), "count": count}
        reply = self._ask(request, seconds=ANSWER_SECONDS)
        return Answer(tuple(reply["tokens"]), reply["seconds"], reply["first_seconds"], reply["first_tokens"])

    def close(self) -> None:
        """End the child process; kill it if it does not end within 5 seconds. Idempotent."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join()
        self._child.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        assert self._child.stdin is not None
        seconds = self._patience or seconds
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except BrokenPipeError:
            line = ""
        except Empty:
            self._child.kill()
            raise RuntimeUnavailable(f"it did not answer within {seconds:g} s") from None
        if not line:
            raise RuntimeUnavailable(self._death())
        reply: dict[str, Any] = json.loads(line)
        if "refused" in reply:
            raise RuntimeUnavailable(str(reply["refused"]))
        return reply

    def _death(self) -> str:
        code = self._child.wait()
        if signal := signal_name(code):
            return f"its native code died with {signal}"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1]}" if lines else "")
