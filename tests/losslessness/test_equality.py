"""One pack on both engines: equal text within kernel noise, and a damaged matrix is detected."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgedecode.cli import main
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from tests.conftest import Told

PROMPTS = 12
LIMITS = ["--limit", str(PROMPTS), "-n", "48"]


@pytest.fixture(scope="module")
def both(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack with the demo pair's target at 4 bits for both engines."""
    for package in ("torch", "llama_cpp", "gguf"):
        pytest.importorskip(package, reason="the export or llama extras are not installed")
    pack = tmp_path_factory.mktemp("packs") / "both"
    words = ["export", "--target", str(demo_pair / "target"), "--bits", "4", "--formats", "onnx,gguf"]
    words += ["--activations", "8"]  # the result of the measurement for this pair
    assert main([*words, "--noise-positions", "1000", "--out", str(pack)]) == 0
    return pack


@pytest.mark.slow
def test_eval_equality_finds_both_engines_equal(both: Path, told: Told) -> None:
    found = told("eval", "--equality", "-m", str(both), *LIMITS)["models"]["target"]
    assert found["prompts"] == PROMPTS
    assert found["tokens"] > 20 * PROMPTS
    assert found["hits"] >= 0.99 * found["tokens"]
    assert found["largest_gap"] <= found["noise"]["onnx"]
    kept = Manifest.load(both).models["target"].equality
    assert kept.equal
    assert main(["show", str(both), "--verify"]) == 0


@pytest.mark.slow
def test_eval_equality_detects_one_damaged_matrix(
    both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gguf

    pack = Path(shutil.copytree(both, tmp_path / "pack"))
    path = pack / Manifest.load(pack).models["target"].gguf
    reader = gguf.GGUFReader(path, "r+")
    down = next(tensor for tensor in reader.tensors if tensor.name == "blk.4.ffn_down.weight")
    down.data[:] = np.roll(down.data, 1, axis=0)
    reader.data.flush()
    value = json.loads((pack / MANIFEST_NAME).read_text())
    value["files"]["target/model.gguf"]["sha256"] = file_sha256(path)
    (pack / MANIFEST_NAME).write_text(json.dumps(value))
    assert main(["eval", "--equality", "-m", str(pack), *LIMITS]) == 1
    assert "NOT EQUAL: onnx and llama differ by more than kernel noise: target on" in capsys.readouterr().out
    kept = Manifest.load(pack).models["target"].equality
    assert kept.beyond > 0
