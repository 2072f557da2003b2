"""A toy pair behind the verbs in this process, and a real pack behind them in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from edgedecode import Pair
from edgedecode.hub import BUNDLED_PACK
from edgedecode.testing import toy_pair

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="session")
def pack() -> Path:
    """The bundled pack, or the one that is being made while the project is."""
    for folder in (BUNDLED_PACK, Path("/tmp/packs/demo8")):
        if (folder / "edgedecode.json").is_file():
            pytest.importorskip("onnxruntime")
            return folder
    pytest.skip("there is no pack: run `make pack`")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pair]:
    """The pair that every verb opens in this test. Its manifest file is empty: only its digest is ever wanted."""
    pair = toy_pair(context=1024, draft_noise=0.5)
    pair.root = tmp_path
    (tmp_path / "edgedecode.json").write_text("{}")
    for module in ("generate.command", "chat.command", "bench.run"):
        monkeypatch.setattr(import_module(f"edgedecode.apps.{module}"), "open_pair", lambda arguments: pair)
    yield pair
    pair.close()


def command_line(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", "import sys; from edgedecode.cli import main; sys.exit(main())", *words]


@pytest.fixture(scope="session")
def run() -> Run:
    """Run `edgedecode WORDS` in a child process with `stdin` as its standard input."""

    def run(*words: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command_line(words),
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
        )

    return run
