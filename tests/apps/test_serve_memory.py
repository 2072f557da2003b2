"""The server as a process: memory under load, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgedecode.memory.process_memory import memory_of
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)


@contextmanager
def serving(*words: str, errors: Path | None = None, before: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `edgedecode serve` on a free port; yield the process and its address. errors: receives its messages.

    before: Python code to run first.
    """
    program = f"{before}\nimport sys; from edgedecode.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--runtime", "onnx", *words]
    with open(errors or os.devnull, "w", encoding="utf-8") as messages:  # a pipe that nobody reads would fill
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            line = next((line for line in lines if line.rstrip().endswith("/v1")), None)
            assert line is not None, f"the server ended with {process.wait()}"
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            process.kill()
            process.communicate()


def ask(address: str, seed: int) -> int:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "A story, please."}],
        "seed": seed,
        "max_tokens": 40,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
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
            asked = [pool.submit(ask, address, seed) for seed in range(160)]
            while wait(asked, timeout=0.02).not_done:
                found = memory_of(process.pid)
                most = max(most, 0 if found is None or found.anonymous is None else found.anonymous)
        assert {each.result() for each in asked} == {200}
        assert 0 < most <= limit


def test_a_signal_ends_the_server_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's experience is stored, as after Ctrl-C."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    with serving(errors=tmp_path / "messages") as (process, address):
        assert ask(address, 1) == 200
        assert not list((tmp_path / "cache" / "costs").glob("*"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 128 + signal.SIGTERM
    assert list((tmp_path / "cache" / "costs").glob("*.json"))
    assert "Traceback" not in (tmp_path / "messages").read_text(encoding="utf-8")
