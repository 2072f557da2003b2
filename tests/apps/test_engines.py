"""The engine the verbs run on, with a fallback when a native library crashes."""

import json
import sys
from pathlib import Path

import pytest

from edgedecode.pack.manifest import Manifest
from tests.apps.conftest import Run

SHORT = ("-p", "What is the capital of France?", "--temp", "0", "-n", "8")
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
REBUILD = "--no-deps llama-cpp-python==0.3.36"


@pytest.fixture
def dual_pack(pack: Path) -> Path:
    """The bundled pack, if both engines can run it."""
    entry = Manifest.load(pack).models["target"]
    if not (entry.gguf or entry.gguf_plan):
        pytest.skip("the pack runs on ONNX Runtime only: run `make pack`")
    return pack


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {"EDGEDECODE_CACHE": str(tmp_path / "cache"), "EDGEDECODE_RUNTIME": ""}


@pytest.fixture
def crashing(tmp_path: Path, settings: dict[str, str]) -> dict[str, str]:
    """Install a llama-cpp-python that crashes on import, as a build for another processor does."""
    folder = tmp_path / "site"
    (folder / "llama_cpp").mkdir(parents=True)
    (folder / "llama_cpp" / "__init__.py").write_text(DIES)
    about = folder / "llama_cpp_python-0.3.36.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.3.36\n")
    return {**settings, "PYTHONPATH": str(folder)}


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
def test_auto_reports_a_crashing_engine_and_runs_the_other(dual_pack: Path, run: Run, crashing: dict[str, str]) -> None:
    listed = run("devices", "--json", "-m", str(dual_pack), **crashing)
    assert listed.returncode == 0
    value = json.loads(listed.stdout.splitlines()[-1])
    (llama,) = (device for device in value["devices"] if device["runtime"] == "llama")
    assert not llama["available"]
    for text in (llama["reason"], value["auto"]["reason"]):
        assert "SIGSEGV" in text
        assert 'CMAKE_ARGS="-DGGML_NATIVE=OFF"' in text
        assert REBUILD in text
    assert value["auto"]["engine"] == "onnx"
    done = run("generate", "-m", str(dual_pack), *SHORT, **crashing)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"The capital of France is Paris.\n", b"")
    done = run("generate", "-m", str(dual_pack), *SHORT, "--runtime", "auto", **crashing)
    assert (done.returncode, done.stdout) == (0, b"The capital of France is Paris.\n")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("edgedecode: decoding on onnx (")
    assert "SIGSEGV" in line
    assert REBUILD in line
    done = run("generate", "-m", str(dual_pack), *SHORT, "--runtime", "llama", **crashing)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"does not run here: its native code died with SIGSEGV" in done.stderr


def test_auto_considers_only_engines_with_the_requested_options(
    dual_pack: Path, run: Run, settings: dict[str, str]
) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    words = ("generate", "-m", str(dual_pack), *SHORT, "--runtime", "auto", "--kv-type", "float16")
    done = run(*words, **settings)
    assert (done.returncode, done.stdout) == (0, b"The capital of France is Paris.\n")
    assert "decoding on llama (onnx: " in done.stderr.decode()
    refused = run("generate", "-m", str(dual_pack), *SHORT, "--runtime", "auto", "--provider", "abacus", **settings)
    assert refused.returncode == 1
    assert "no installed engine can run this pack with these options" in refused.stderr.decode()
    assert "'abacus'" in refused.stderr.decode()


def test_bench_runs_on_the_chosen_engine(dual_pack: Path, run: Run, settings: dict[str, str]) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    words = ("--families", "story", "--per-family", "1", "--repetitions", "1", "-n", "4", "--lengths", "1", "--json")
    done = run("bench", "-m", str(dual_pack), *words, "--drafters", "suffix", "--kv-type", "float16", **settings)
    assert done.returncode == 0, done.stderr.decode()
    assert "llama on cpu" in json.loads(done.stdout.splitlines()[-1])["conditions"]["pack"]
