"""`edgedecode package --native`: what is in the folder, and what is refused."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from edgedecode.adapters.adapter_memory import read_adapter
from edgedecode.adapters.peft_folder import PeftAdapter
from edgedecode.errors import CapabilityError
from edgedecode.export.native import folder
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal, Told
from tests.export.conftest import run
from tests.losslessness.adapters import write_twins

pytest.importorskip("onnxruntime")


def test_the_folder_lists_its_files(told: Told, tmp_path: Path) -> None:
    out = tmp_path / "folder"
    found = told("package", "demo", "--native", "--out", out)
    assert json.loads((out / "native.json").read_text(encoding="utf-8")) == found
    listed = {name: each["sha256"] for name, each in found["files"].items()}
    there = [path for path in out.rglob("*") if path.is_file() and path.name != "native.json"]
    assert listed == {path.relative_to(out).as_posix(): sha256(path.read_bytes()).hexdigest() for path in there}
    assert [(name, each["rows"], bool(each["token_ids"])) for name, each in found["models"].items()] == [
        ("target", 8192, False),
        ("draft", 4992, True),
    ]


def test_an_adapter_that_cannot_be_read_stays_behind_alone(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = write_twins(tmp_path / "pack")

    def read(manifest: Manifest, root: Path, name: str) -> PeftAdapter:
        if name == "activated":
            raise CapabilityError("it is of another kind")
        return read_adapter(manifest, root, name)

    asked = []
    monkeypatch.setattr(folder, "read_adapter", read)
    monkeypatch.setattr(folder, "check_place", lambda out, nbytes: asked.append(nbytes))
    found = told("package", twins, "--native", "--out", tmp_path / "folder")
    assert {*found["models"]["target"]["adapters"]} == {"ordinary", "alone"}
    files = [each.stat().st_size for each in twins.rglob("adapters/**/*.safetensors")]
    weights = Manifest.load(twins).weights_nbytes("target")
    assert asked == [2 * (2 * weights + sum(files)) + 20_000_000]


def test_a_float_model_is_refused(demo_pair: Path, refusal: Refusal, tmp_path: Path) -> None:
    pack, out = tmp_path / "pack", tmp_path / "folder"
    assert run("export", "--target", demo_pair / "target", "--out", pack, "--bits", "32") == 0
    assert "runs in part on ONNX Runtime's own kernels" in refusal("package", pack, "--native", "--out", out)
    assert not out.exists()


def test_a_target_is_needed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("package", "demo", "--out", tmp_path / "folder")
    assert "--target --native" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--native", "--ctx-size", "77"), "--ctx-size goes with --target: leave it out with --native"),
        (("--native", "--app-id", "com.example.duck"), "--app-id goes with --target"),
        (("--native", "--test-tokens", "32"), "--test-tokens goes with --target"),
        (("--target", "android-cpu", "--kv-type", "int8"), "--kv-type goes with --native: leave it out with --target"),
    ],
)
def test_options_of_the_other_kind_are_refused(
    words: tuple[str, ...], said: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert said in refusal("package", "demo", *words, "--out", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
