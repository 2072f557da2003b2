"""`export` and `import` from the command line."""

import json
import shutil
from pathlib import Path

import pytest

import edgedecode
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest

from .conftest import run

pytestmark = pytest.mark.export


@pytest.mark.usefixtures("tables_too")
def test_export_prints_stages_and_a_json_report(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pack"
    words = ("--draft", llama, "--bits", "4", "--name", "tiny", "--license", "CC0-1.0", "--noise-positions", "40")
    assert run("export", "--target", llama, "--out", out, *words, "--json") == 0
    printed = capsys.readouterr().out
    report = json.loads(printed.splitlines()[-1])
    first = ["structure", "calibration text", "widths", "calibration", "weights"]
    assert [stage["title"] for stage in report["stages"]][:6] == ["check", *(f"target: {name}" for name in first)]
    assert report["peak_nbytes"] > 0
    manifest = Manifest.load(out)
    assert (manifest.name, manifest.models["draft"].license) == ("tiny", "CC0-1.0")
    assert (manifest.models["target"].bits, manifest.models["target"].head_bits) == (4, 8)
    assert report["models"]["target"]["kernel_noise"] == manifest.models["target"].kernel_noise > 0
    assert manifest.generation.max_tokens == 77
    assert manifest.models["target"].graphs["base"].capabilities == ("tree", "rows")
    assert "stage" in printed
    assert "kernel noise" in printed
    assert "same token over" in printed
    assert report["models"]["target"]["parity"]["loss_positions"] > 100


def test_export_hides_the_builders_output(llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--target", llama, "--out", tmp_path / "pack", "--noise-positions", "0") == 0
    quiet = capfd.readouterr()
    assert "GroupQueryAttention" not in quiet.out + quiet.err
    assert Manifest.load(tmp_path / "pack").models["target"].kernel_noise is None


def test_export_of_the_demo_pair(demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for role in ("target", "draft"):
        shutil.copytree(demo_pair / role, tmp_path / role)
    out = tmp_path / "pack"
    words = ("--draft", tmp_path / "draft", "--license", "Apache-2.0", "--noise-positions", "200")
    assert run("export", "--target", tmp_path / "target", "--out", out, *words) == 0
    assert "kernel noise" in capsys.readouterr().out
    manifest = Manifest.load(out)
    assert sum(entry.nbytes for entry in manifest.files.values()) <= 15e6
    for entry in manifest.models.values():
        assert entry.parity["max_error"] < 1e-4
        assert entry.parity["kernel_top1"] > 0.9
        assert entry.parity["loss_kl"] < 5e-3  # its weights are exact in 8 bits, activations are not
        assert entry.parity["loss_top1"] > 0.95
        assert 0 < (entry.kernel_noise or 0) < 0.5
    with edgedecode.load(out) as pair:
        capital = pair.session(messages=()).generate("What is the capital of France?", max_tokens=24)
    assert "Paris" in str(capital)
    for role, entry in manifest.models.items():
        assert manifest.files[entry.weights] == Manifest.load(BUNDLED_PACK).files[f"{role}/weights.bin"]
