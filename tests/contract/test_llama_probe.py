"""The engine is tried in a child process: a crash there is a reason, asked for once, and never ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.runtimes.llama import LlamaRuntime
from edgedecode.runtimes.llama import llama_runtime as runtime
from edgedecode.runtimes.llama.files import engine_probe as probe
from edgedecode.runtimes.llama.files.engine_probe import Finding, probe_engine
from tests.contract.conftest import GgufOpener
from tests.contract.toy_graph import ToyShape

VERSION = "0.3.36"
COUNT = "import sys; open(sys.argv[1], 'a').write('x')"


def child(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


def killed(name: str) -> tuple[str, ...]:
    return child(f"import os, signal; os.kill(os.getpid(), signal.{name})")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT"])
def test_a_crash_is_named_and_says_how_to_rebuild(name: str, cache: Path) -> None:
    finding = probe_engine(VERSION, python=killed(name))
    assert not finding.works
    assert f"died with {name}" in finding.reason
    assert 'CMAKE_ARGS="-DGGML_NATIVE=OFF"' in finding.reason
    assert "--no-binary :all:" in finding.reason
    assert finding.reason.endswith("llama-cpp-python==0.3.36")
    assert probe_engine(VERSION, python=child("pass")) == finding, "remembered"
    assert len(list(cache.iterdir())) == 1
    assert probe_engine("0.3.37", python=child("pass")) == Finding(True), "another wheel is asked again"


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (killed("SIGKILL"), "SIGKILL"),
        (child("raise OSError('libgomp is missing')"), "OSError: libgomp is missing"),
        (child("import time; time.sleep(60)"), "within 0.5 s"),
        (("/no/such/python",), "could not be started"),
    ],
    ids=["killed", "failed", "hung", "absent"],
)
def test_what_may_pass_is_not_remembered(command: tuple[str, ...], words: str, cache: Path) -> None:
    finding = probe_engine(VERSION, python=command, timeout=0.5)
    assert not finding.works
    assert words in finding.reason
    assert list(cache.iterdir()) == []


def test_a_library_that_does_not_load_says_how_to_build_it_again(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise FileNotFoundError('no libllama here')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    code += "from edgedecode.runtimes.llama.files.engine_probe import decode_tiny; decode_tiny(sys.argv[1])"
    finding = probe_engine(VERSION, python=child(code))
    assert finding.reason.startswith("llama.cpp's library does not load (no libllama here): pip install --force-rein")
    assert list(cache.iterdir()) == [], "asked again after it was built"


def test_a_good_build_is_asked_once(tmp_path: Path, cache: Path) -> None:
    command = child(COUNT, str(tmp_path / "calls"))
    assert probe_engine(VERSION, python=command) == probe_engine(VERSION, python=command) == Finding(True)
    assert (tmp_path / "calls").read_text() == "x"
    (path,) = cache.iterdir()
    for damage in ("", "{", "[]", '{"works": 1}', "\x00"):
        path.write_text(damage)
        assert probe_engine(VERSION, python=command) == Finding(True)
    assert (tmp_path / "calls").read_text() == "x" * 6


def test_another_library_or_processor_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = child(COUNT, str(tmp_path / "calls"))
    for name in ("_library", "processor_facts"):
        probe_engine(VERSION, python=command)
        monkeypatch.setattr(probe, name, lambda: ["changed"])
    probe_engine(VERSION, python=command)
    assert (tmp_path / "calls").read_text() == "xxx"


def test_no_cache_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "cache"))
    assert probe_engine(VERSION, python=child("pass")) == Finding(True)


def test_the_real_engine_runs_its_tiny_model() -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    assert probe_engine(VERSION) == Finding(True)


def test_a_crashing_engine_is_listed_and_never_loaded(gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = gguf_opener.entry(ToyShape())
    monkeypatch.setattr(runtime, "engine_version", lambda: VERSION)
    monkeypatch.setattr(runtime, "Engine", None)
    monkeypatch.setattr(runtime, "probe_engine", lambda version: probe_engine(version, python=killed("SIGSEGV")))
    ours, budget = LlamaRuntime(), Budget()
    (device,) = ours.devices()
    assert (device.runtime, device.provider, device.available) == ("llama", "cpu", False)
    assert "SIGSEGV" in device.reason
    with pytest.raises(RuntimeUnavailable, match=r"does not run here: its native code died with SIGSEGV; rebuild"):
        ours.open(
            ModelRequest(
                entry,
                gguf_opener.root(ToyShape()),
                name="target",
                vocabulary_size=128,
                budget=budget,
                threads=1,
                provider="cpu",
            )
        )
    assert budget.leases == ()


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "engine_version", lambda: None)
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'edgedecode\[llama\]'"):
        LlamaRuntime()


def test_devices_of_a_good_engine() -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    (device,) = LlamaRuntime().devices()
    assert (device.provider, device.available, device.reason) == ("cpu", True, "")
    assert "llama-cpp-python" in device.description


def test_nothing_native_is_loaded_to_list_devices() -> None:
    import subprocess

    code = (
        "import json, sys; from edgedecode.runtimes.llama import LlamaRuntime; LlamaRuntime().devices(); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "llama_cpp" not in json.loads(done.stdout)
