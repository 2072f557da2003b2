"""Fixtures for the verbs: a toy pair in this process, and a real pack in child processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode import Pair
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.testing import TableRuntime, toy_pair, toy_tables
from tests.apps.chat_script import conversation_of

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="session")
def pack() -> Path:
    """The bundled pack, which needs ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    return BUNDLED_PACK


@pytest.fixture
def pack_copy(pack: Path, tmp_path: Path) -> Path:
    """A copy of the bundled pack that a test may change."""
    return Path(shutil.copytree(pack, tmp_path / "pack"))


@pytest.fixture(scope="session")
def pair(pack: Path) -> Iterator[Pair]:
    """The bundled pack, opened once."""
    with edgedecode.load(pack, runtime="onnx") as pair:
        yield pair


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Any]:
    """A server of the bundled pack; the file's `SERVER` has what it is made with."""
    from tests.apps.serving import Running

    with Running(pair, **getattr(request.module, "SERVER", {})) as running:
        yield running


def opened_toy(root: Path) -> Pair:
    toy = toy_pair(context=1024)
    target = toy_tables(toy.tokenizer.size, seed=0)
    draft = toy_tables(toy.tokenizer.size, seed=1, scale=0.5, near=target)
    runtime = TableRuntime({"target": target, "draft": draft}, context=1024)
    return Pair(toy.manifest, root, tokenizer=toy.tokenizer, runtime=runtime, budget=toy.budget)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pair]:
    """Make every verb open a toy pair, and return the first one opened.

    The manifest file is empty: only its digest is used.
    """
    (tmp_path / "edgedecode.json").write_text("{}")
    pair = opened_toy(tmp_path)
    unused = [pair]
    for module in ("apps.generate.command", "apps.chat.command", "bench.kinds"):
        opened = import_module(f"edgedecode.{module}")
        monkeypatch.setattr(opened, "open_pair", lambda *_, **__: unused.pop() if unused else opened_toy(tmp_path))
    yield pair
    pair.close()


@pytest.fixture
def chat(toy: Pair) -> Conversation:
    """A chat on the toy pair; `talk` runs it on scripted input."""
    return conversation_of(toy)


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
            timeout=600,  # only ends what hangs: `bench --place` opens every engine, on a busy machine too
            check=False,
            env={**os.environ, **environment},
        )

    return run
