"""The engine probe in a child process: a crash is recorded once as a reason and never reaches this process."""

import json
import sys
from pathlib import Path

import pytest

from edgedecode.errors import RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.runtimes.llama import LlamaRuntime
from edgedecode.runtimes.llama import llama_runtime as runtime
from edgedecode.runtimes.llama.files import engine_probe as probe
from edgedecode.runtimes.llama.files.engine_probe import Finding, probe_engine
from tests.contract.conftest import GgufOpener, request_of
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
def test_probe_names_a_crash_and_how_to_rebuild(name: str, cache: Path) -> None:
    finding = probe_engine(VERSION, python=killed(name))
    assert not finding.works
    assert f"died with {name}" in finding.reason
    assert 'CMAKE_ARGS="-DGGML_NATIVE=OFF"' in finding.reason
    assert "--no-binary :all:" in finding.reason
    assert finding.reason.endswith("llama-cpp-python==0.3.36")
    assert probe_engine(VERSION, python=child("pass")) == finding, "remembered"
    assert len(list(cache.iterdir())) == 1
    assert probe_engine("0.3.37", python=child("pass")) == Finding(True), "another wheel must be probed again"


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
def test_probe_does_not_cache_temporary_failures(command: tuple[str, ...], words: str, cache: Path) -> None:
    finding = probe_engine(VERSION, python=command, timeout=0.5)
    assert not finding.works
    assert words in finding.reason
    assert list(cache.iterdir()) == []


def test_probe_of_a_library_that_does_not_load_names_how_to_rebuild(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise FileNotFoundError('no libllama here')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    code += "from edgedecode.runtimes.llama.files.engine_probe import decode_tiny; decode_tiny(sys.argv[1])"
    finding = probe_engine(VERSION, python=child(code))
    assert finding.reason.startswith("llama.cpp's library does not load (no libllama here): pip install --force-rein")
    assert list(cache.iterdir()) == [], "it must be probed again after a rebuild"


def test_probe_runs_once_for_a_good_build(tmp_path: Path, cache: Path) -> None:
    command = child(COUNT, str(tmp_path / "calls"))
    assert probe_engine(VERSION, python=command) == probe_engine(VERSION, python=command) == Finding(True)
    assert (tmp_path / "calls").read_text() == "x"
    (path,) = cache.iterdir()
    for damage in ("", "{", "[]", '{"works": 1}', "\x00"):
        path.write_text(damage)
        assert probe_engine(VERSION, python=command) == Finding(True)
    assert (tmp_path / "calls").read_text() == "x" * 6


def test_probe_runs_again_for_another_library_or_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = child(COUNT, str(tmp_path / "calls"))
    for name in ("_library", "processor_facts"):
        probe_engine(VERSION, python=command)
        monkeypatch.setattr(probe, name, lambda: ["changed"])
    probe_engine(VERSION, python=command)
    assert (tmp_path / "calls").read_text() == "xxx"


def test_probe_works_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "cache"))
    assert probe_engine(VERSION, python=child("pass")) == Finding(True)


def test_probe_runs_the_tiny_model_on_the_real_engine() -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    assert probe_engine(VERSION) == Finding(True)


def test_devices_list_a_crashing_engine_that_is_never_loaded(
    gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = gguf_opener.entry(ToyShape())
    monkeypatch.setattr(runtime, "engine_version", lambda: VERSION)
    monkeypatch.setattr(runtime, "Engine", None)
    monkeypatch.setattr(runtime, "probe_engine", lambda version: probe_engine(version, python=killed("SIGSEGV")))
    ours, budget = LlamaRuntime(), Budget()
    (device,) = ours.devices()
    assert (device.runtime, device.provider, device.available) == ("llama", "cpu", False)
    assert "SIGSEGV" in device.reason
    with pytest.raises(RuntimeUnavailable, match=r"does not run here: its native code died with SIGSEGV; rebuild"):
        ours.open(request_of(entry, gguf_opener.root(ToyShape()), budget=budget))
    assert budget.leases == ()


def test_runtime_that_is_not_installed_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "engine_version", lambda: None)
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'edgedecode\[llama\]'"):
        LlamaRuntime()


def test_devices_of_a_good_engine() -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    (device,) = LlamaRuntime().devices()
    assert (device.provider, device.available, device.reason) == ("cpu", True, "")
    assert "llama-cpp-python" in device.description


def test_devices_load_no_native_code() -> None:
    import subprocess

    code = (
        "import json, sys; from edgedecode.runtimes.llama import LlamaRuntime; LlamaRuntime().devices(); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "llama_cpp" not in json.loads(done.stdout)
