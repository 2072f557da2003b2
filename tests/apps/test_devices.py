"""`devices`, and the child process that isolates a crashing engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.apps.devices.command import probe
from edgedecode.cli import main
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.apps.conftest import Run
from tests.apps.packs import sign
from tests.conftest import Refusal, Told

SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
def test_probe_reports_a_crash_by_its_signal_name() -> None:
    (device,) = probe("onnx", python=(sys.executable, "-c", SEGFAULT))
    assert not device.available
    assert "SIGSEGV" in device.reason


def test_probe_reports_a_hang_and_a_failure_as_reasons() -> None:
    (device,) = probe("onnx", python=(sys.executable, "-c", "import time; time.sleep(60)"), timeout=0.2)
    assert "did not answer within 0.2 s" in device.reason
    (device,) = probe("onnx", python=(sys.executable, "-c", "raise OSError('no driver')"))
    assert "no driver" in device.reason
    (device,) = probe("onnx", python=("/no/such/python",))
    assert "could not be started" in device.reason


def test_probe_in_a_frozen_application_starts_no_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "0")  # trying Vulkan in software takes half a minute
    usual = probe("onnx")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "run", None)
    tried.cache_clear()
    assert probe("onnx") == usual


def test_devices_prints_a_table_or_a_json_line(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    pytest.importorskip("onnxruntime")
    value = told("devices")
    assert set(value) == {"machine", "versions", "devices", "auto", "kernels"}
    assert value["kernels"] == []
    assert value["machine"]["cores"] >= 1
    assert {"edgedecode", "numpy", "onnxruntime"} <= set(value["versions"])
    cpu = [device for device in value["devices"] if (device["runtime"], device["provider"]) == ("onnx", "cpu")]
    assert [device["available"] for device in cpu] == [True]
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["runtime", "provider", "available"]


def listed(pack: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[tuple[str, str], dict[str, Any]]]:
    """Return the output of `devices -m`, and its graphs by model and name."""
    assert main(["devices", "--runtime", "onnx", "-m", str(pack), "--json"]) == 0
    printed = capsys.readouterr().out
    graphs = json.loads(printed.splitlines()[-1])["kernels"]
    return printed, {(each["model"], each["graph"]): each for each in graphs}


def test_devices_lists_the_kernels_each_graph_is_opened_with(
    pack: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for choice in ("auto", "engine"):
        monkeypatch.setenv("EDGEDECODE_KERNELS", choice)
        printed, found = listed(pack, capsys)
        manifest = Manifest.load(pack)
        assert set(found) == {(role, name) for role, entry in manifest.models.items() for name in entry.graphs}
        with edgedecode.load(pack, runtime="onnx") as pair:
            assert pair.draft is not None
            for role, model in (("target", pair.target), ("draft", pair.draft)):
                assert found[role, "base"]["kernels"] == model.card.kernels
                assert found[role, "base"]["row_invariant"] == model.card.row_invariant
        assert ("EDGEDECODE_KERNELS=engine" in printed) == (choice == "engine")


def test_devices_lists_products_left_to_the_engine_with_the_reason(
    pack_copy: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    if tried()[0] is None:
        pytest.skip(f"no kernels: {tried()[1]}")
    path = pack_copy / "draft" / "base.onnx"
    file = GraphFile.parse(path.read_bytes())
    first, second = [node for node in file.nodes if node.op_type == "MatMulNBits"][:2]
    first.attributes["accuracy_level"] = 1
    second.attributes["block_size"] = 256
    path.write_bytes(file.serialize())
    sign(pack_copy, path)
    printed, found = listed(pack_copy, capsys)
    unchanged, changed = found["target", "base"], found["draft", "base"]
    assert unchanged["row_invariant"]
    assert unchanged["left"] == {}
    assert not changed["row_invariant"]
    assert sum(changed["left"].values()) == 2
    assert all(what.startswith("MatMulNBits (") for what in changed["left"])
    assert any("blocks of 256" in what for what in changed["left"])
    assert "blocks of 256" in printed
    path.write_bytes(b"no graph")
    sign(pack_copy, path)
    assert "draft/base.onnx is refused: " in refusal("devices", "--runtime", "onnx", "-m", str(pack_copy))


def test_devices_imports_no_files_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('was imported')")
    monkeypatch.chdir(tmp_path)
    assert main(["devices", "--json"]) == 0
    printed = capsys.readouterr().out
    assert "was imported" not in printed
    assert any(device["available"] for device in json.loads(printed.splitlines()[-1])["devices"])


# -- the engine the verbs run on, with a fallback when a native library crashes ----------------------------------------

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
