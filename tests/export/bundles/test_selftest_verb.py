"""`selftest`: lanes pass on good bundles, fail on answers that differ, and say what is missing."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgedecode.export.bundles import selftest
from edgedecode.export.bundles.bundle import Bundle, write_bundle
from edgedecode.export.bundles.package import _listed
from tests.conftest import Refusal, Told
from tests.export.conftest import run


@pytest.fixture
def graphs(graphs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(graphs, tmp_path / "bundle"))


def write_again(root: Path) -> None:
    """List a bundle's files as they are now."""
    from dataclasses import replace

    write_bundle(root, replace(Bundle.load(root), files=_listed(root)))


def test_a_bundle_passes_on_this_processor(graphs: Path, told: Told) -> None:
    lane, other = told("selftest", graphs, "--sysroot", "/nowhere")
    assert not other["ran"]
    assert lane["passed"]
    assert sum(one["tokens"] for one in lane["answers"]) > 50
    assert 0 < sum(one["accepted"] for one in lane["answers"]) <= sum(one["drafted"] for one in lane["answers"])


def test_other_expected_answers_fail(graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = graphs / "selftest" / "expected.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    value["answers"][1][2] = (value["answers"][1][2] + 1) % 100
    path.write_text(json.dumps(value), encoding="utf-8")
    write_again(graphs)
    assert run("selftest", graphs, "--sysroot", "/nowhere") == 1
    assert "cpu: FAILED" in capsys.readouterr().out


def test_a_program_that_dies_is_reported(
    graphs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = selftest.Interpreter([sys.executable, "-c", "1 / 0"], os.environ)
    monkeypatch.setattr(selftest, "LANES", {"cpu": lambda _: dying})
    assert run("selftest", graphs, "--sysroot", "/nowhere") == 1
    found = capsys.readouterr().out
    assert "cpu: FAILED, the program ended with exit code 1: ZeroDivisionError" in found
    assert len(found.splitlines()) == 1


def test_a_bundle_with_errors_is_not_opened(graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (graphs / "models/target/base.onnx").write_bytes(b"not a graph")
    write_again(graphs)
    assert run("selftest", graphs) == 1
    error = capsys.readouterr().err
    assert "base.onnx does not load" in error
    assert "edgedecode lint" in error


def test_a_changed_byte_is_refused_before_anything_runs(graphs: Path, refusal: Refusal) -> None:
    path = graphs / "models/target/weights.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert "weights.bin has another content than was packaged" in refusal("selftest", graphs)


def test_the_code_in_a_bundle_is_not_run(graphs: Path, tmp_path: Path) -> None:
    """A bundle from elsewhere must not run code here, even if its digests are right."""
    for path in (graphs / "selftest").glob("*.py"):
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    write_again(graphs)
    assert run("selftest", graphs, "--sysroot", "/nowhere") == 0
    assert not (tmp_path / "ran").exists()


def test_the_bundles_own_program_gives_the_same_result(graphs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "selftest.run"], cwd=graphs, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["passed"]


def test_a_bundle_for_llamacpp_is_not_run_here(graphs: Path, refusal: Refusal) -> None:
    path = graphs / "bundle.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    value |= {"target": "android-llamacpp"}
    for model in value["models"].values():
        model["graphs"] = []
    path.write_text(json.dumps(value), encoding="utf-8")
    assert "a bundle for android-llamacpp holds no graph for processors" in refusal("selftest", graphs)


def test_a_missing_arm64_python_is_named_beside_the_other_lane(
    graphs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(selftest.SYSROOT, raising=False)
    assert run("selftest", graphs, "-t", "1") == 0
    found = capsys.readouterr().out
    assert "cpu: passed" in found
    assert "arm64: not run: " in found


@pytest.mark.skipif(not os.environ.get("EDGEDECODE_ARM64_SYSROOT"), reason="EDGEDECODE_ARM64_SYSROOT is not set")
def test_a_bundle_passes_on_an_arm64_processor(graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("selftest", graphs) == 0
    assert "arm64: passed" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_a_bundle_for_npus_passes_on_the_emulator(tmp_path: Path) -> None:
    from tests.export.test_compile import small_pack

    pack, prompts = small_pack(tmp_path / "pack"), tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Say hello.", "family": ""}\n', encoding="utf-8")
    words = ["--device", "qnn", "--soc", "57,69", "--widths", "8,1", "--context", "64"]
    assert run("compile", pack, *words) == 0
    for target in ("android-qnn", "snapdragon-windows"):
        out = tmp_path / target
        assert run("package", pack, "--target", target, "--soc", "SM8650", "--out", out, "--prompts", prompts) == 0
        assert {soc for graph in Bundle.load(out).models["target"].graphs for soc in graph.socs} == {57}
    for words in (["-m", "selftest.run"], ["-m", "selftest.run", "--provider", "cpu"]):
        root = tmp_path / "android-qnn"
        done = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
