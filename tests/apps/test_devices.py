"""`devices`, and the child process that isolates a crashing engine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.apps.devices.command import probe
from edgedecode.cli import main
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried

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


def test_devices_prints_a_table_or_a_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["devices", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
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
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if tried()[0] is None:
        pytest.skip(f"no kernels: {tried()[1]}")
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    path = copy / "draft" / "base.onnx"
    file = GraphFile.parse(path.read_bytes())
    first, second = [node for node in file.nodes if node.op_type == "MatMulNBits"][:2]
    first.attributes["accuracy_level"] = 1
    second.attributes["block_size"] = 256
    path.write_bytes(file.serialize())
    _sign(copy, path)
    printed, found = listed(copy, capsys)
    unchanged, changed = found["target", "base"], found["draft", "base"]
    assert unchanged["row_invariant"]
    assert unchanged["left"] == {}
    assert not changed["row_invariant"]
    assert sum(changed["left"].values()) == 2
    assert all(what.startswith("MatMulNBits (") for what in changed["left"])
    assert any("blocks of 256" in what for what in changed["left"])
    assert "blocks of 256" in printed
    path.write_bytes(b"no graph")
    _sign(copy, path)
    assert main(["devices", "--runtime", "onnx", "-m", str(copy)]) == 1
    assert "draft/base.onnx is refused: " in capsys.readouterr().err


def _sign(pack: Path, path: Path) -> None:
    value = json.loads((pack / MANIFEST_NAME).read_text(encoding="utf-8"))
    listed = {"nbytes": path.stat().st_size, "sha256": file_sha256(path)}
    value["files"][path.relative_to(pack).as_posix()] = listed
    (pack / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")


def test_devices_refuses_an_unknown_runtime_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--runtime", "abacus"]) == 1
    assert capsys.readouterr().err == "edgedecode: there is no runtime 'abacus'; installed: llama, onnx\n"


def test_devices_imports_no_files_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('was imported')")
    monkeypatch.chdir(tmp_path)
    assert main(["devices", "--json"]) == 0
    printed = capsys.readouterr().out
    assert "was imported" not in printed
    assert any(device["available"] for device in json.loads(printed.splitlines()[-1])["devices"])
