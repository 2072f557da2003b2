"""`devices`, and the child process that keeps a crashing engine away from us."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgedecode.apps.devices.probe import probe
from edgedecode.cli import main

SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
def test_a_crash_is_reported_by_the_signals_name() -> None:
    (device,) = probe("onnx", python=(sys.executable, "-c", SEGFAULT))
    assert not device.available
    assert "SIGSEGV" in device.reason


def test_a_hang_and_a_failure_are_reasons_too() -> None:
    (device,) = probe("onnx", python=(sys.executable, "-c", "import time; time.sleep(60)"), timeout=0.2)
    assert "did not answer within 0.2 s" in device.reason
    (device,) = probe("onnx", python=(sys.executable, "-c", "raise OSError('no driver')"))
    assert "no driver" in device.reason
    (device,) = probe("onnx", python=("/no/such/python",))
    assert "could not be probed" in device.reason


def test_the_table_and_the_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["devices", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    value = json.loads(lines[-1])
    assert set(value) == {"machine", "versions", "devices", "auto"}
    assert value["machine"]["cores"] >= 1
    assert {"edgedecode", "numpy", "onnxruntime"} <= set(value["versions"])
    cpu = [device for device in value["devices"] if (device["runtime"], device["provider"]) == ("onnx", "cpu")]
    assert [device["available"] for device in cpu] == [True]
    assert lines[0].split()[:3] == ["runtime", "provider", "available"]


def test_an_unknown_runtime_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--runtime", "abacus"]) == 1
    assert capsys.readouterr().err == "edgedecode: there is no runtime 'abacus'; installed: llama, onnx\n"


def test_files_in_the_working_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('was imported')")
    monkeypatch.chdir(tmp_path)
    assert main(["devices", "--json"]) == 0
    printed = capsys.readouterr().out
    assert "was imported" not in printed
    assert any(device["available"] for device in json.loads(printed.splitlines()[-1])["devices"])
