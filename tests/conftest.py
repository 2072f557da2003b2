"""Setup shared by all tests: offline hub, ONNX engine, default Ctrl-C handling, derandomized Hypothesis."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before OpenMP is loaded: torch's threads wait for each other where two workers share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from edgedecode.cli import main
from tests.demo_pair import write_demo_pair
from tests.hub import Hub
from tests.made_once import made_once, run_folder

Refusal = Callable[..., str]
Told = Callable[..., Any]

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ.setdefault("EDGEDECODE_RUNTIME", "onnx")  # else a measurement decides which engine a test runs on
# Before WebGPU's plugin is loaded: software stands in for a graphics processor.
os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of child processes would compile every module again
sys.dont_write_bytecode = False  # and pytest would rewrite every assertion again

# A shell starts background jobs with SIGINT ignored, and child processes inherit that: tests of Ctrl-C would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("edgedecode", deadline=None, derandomize=True)
settings.load_profile("edgedecode")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A separate cache for the tests and their child processes: the user's is neither read nor changed."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDECODE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def demo_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained float pair: a folder with `target` and `draft`. Tests that change it must copy it first."""
    pytest.importorskip("safetensors", reason="the export extras are not installed")
    return made_once(run_folder(tmp_path_factory) / "demo-pair", write_demo_pair)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """A stand-in for the hub, not installed yet, and a cache for its downloads."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return Hub()


@pytest.fixture
def tables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command with `--json` print its tables too, so that one slow run serves the tests of both."""
    monkeypatch.setattr("edgedecode.cli.json_alone", nullcontext)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Run a command that is refused; return its error, which is one line."""

    def refusal(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("edgedecode: ")
        assert error.count("\n") == 1, error
        return error

    return refusal


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run a command with --json; return what it prints so."""

    def told(*words: object, code: int = 0) -> Any:
        assert main([*map(str, words), "--json"]) == code
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return told
