"""`selftest` of an Android bundle: the native library writes the recorded answers, with and without drafts."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.cache import area
from edgedecode.export.bundles import package, selftest
from edgedecode.export.bundles.bundle import Bundle, write_bundle
from edgedecode.export.bundles.device_plan import fit_native
from edgedecode.export.bundles.package import _listed
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal, Told
from tests.export.conftest import run
from tests.losslessness.adapters import write_twins
from tests.native.test_models import ENGINE

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")

QUICK = ("--test-tokens", "2")


@pytest.fixture(scope="module")
def program(native_build: Path) -> Path:
    return native_build / "edgedecode-run"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "bundle"
    assert run("package", "demo", "--target", "android-cpu", "--out", out) == 0
    return out


def test_a_bundle_passes_on_this_processor(bundle: Path, program: Path, told: Told) -> None:
    (lane,) = told("selftest", bundle, "--program", program)
    assert (lane["lane"], lane["passed"], lane["ran"]) == ("native", True, True)
    assert len(lane["answers"]) == 8
    assert sum(one["tokens"] for one in lane["answers"]) > 100


def test_other_expected_answers_fail(bundle: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "selftest/replay.jsonl"
    before = path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in before.splitlines()]
    lines[2]["expected"][1] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_bundle(bundle, replace(Bundle.load(bundle), files=_listed(bundle)))
    try:
        assert run("selftest", bundle, "--program", program) == 1
        assert "native: FAILED, edgedecode-run with libonnxruntime.so" in (said := capsys.readouterr().out)
        assert "7 of 8 answers as expected" in said
    finally:
        path.write_text(before, encoding="utf-8")
        write_bundle(bundle, replace(Bundle.load(bundle), files=_listed(bundle)))


def test_a_program_that_dies_is_reported(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("selftest", bundle, "--program", "/bin/false") == 1
    assert "native: FAILED, edgedecode-run ended with exit code 1\n" in capsys.readouterr().out


def test_without_a_compiler_the_lane_says_what_it_needs(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest.shutil, "which", lambda name: None)
    assert run("selftest", bundle) == 1
    assert "native: not run: edgedecode-run cannot be built here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (None, "it has 7 answers for 4 prompts, not two for each"),
        ("{}", "line 8: object missing required field expected"),
        ("[", "Expecting value"),
    ],
)
def test_a_damaged_replay_is_refused(
    line: str | None, said: str, bundle: Path, tmp_path: Path, refusal: Refusal
) -> None:
    root = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    path = root / "selftest/replay.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[:-1]
    path.write_text("\n".join([*lines, *([line] if line else [])]), encoding="utf-8")
    write_bundle(root, replace(Bundle.load(root), files=_listed(root)))
    assert f"replay.jsonl cannot be replayed: {said}" in refusal("selftest", root, "--program", "/bin/false")


def test_another_processor_needs_its_program_and_engine(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("selftest", bundle, "--sysroot", tmp_path)
    assert "--sysroot needs --program for this bundle" in capsys.readouterr().err
    monkeypatch.setattr(
        selftest, "arm64_python", lambda _: selftest.Interpreter(["qemu-aarch64", "python"], os.environ)
    )
    assert run("selftest", bundle, "--sysroot", tmp_path, "--program", "/bin/false") == 1
    assert f"arm64: not run: {tmp_path} has no libonnxruntime.so" in capsys.readouterr().out


def test_a_program_in_this_folder_needs_no_slash(
    bundle: Path, program: Path, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "its-name").symlink_to(program)
    monkeypatch.chdir(tmp_path)
    assert told("selftest", bundle, "--program", "its-name")[0]["passed"]


def test_each_installation_builds_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    text = "cmake_minimum_required(VERSION 3.16)\nproject(made NONE)\nadd_custom_target(edgedecode-run)\n"
    found = []
    for name in ("one", "other", "one"):
        (tmp_path / name / "native").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "native/CMakeLists.txt").write_text(text, encoding="utf-8")
        monkeypatch.setattr(selftest, "runtimes", lambda place=tmp_path / name: place)
        found.append(selftest.built_program().parent)
    assert found[0] == found[2] != found[1]
    assert {*area("native").iterdir()} == {*found}


def test_adapters_are_planned_and_listed(tmp_path: Path, told: Told, program: Path) -> None:
    pack, out = write_twins(tmp_path / "pack"), tmp_path / "bundle"
    found = told("package", pack, "--target", "android-cpu", *QUICK, "--out", out)
    assert {name: each["role"] for name, each in found["adapters"].items()} == {
        **dict.fromkeys(("ordinary", "activated", "alone"), "target"),
        **dict.fromkeys(("draft:ordinary", "draft:activated"), "draft"),
    }
    assert {each["file"] for each in found["adapters"].values()} <= {*found["files"]}
    assert "adapter:ordinary" in found["plan"]["holders"]
    assert told("selftest", out, "--program", program)[0]["passed"]


def test_a_draft_that_does_not_fit_stays_behind(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "fit_native", lambda *given, **more: replace(fit_native(*given, **more), drafts=False))
    out = tmp_path / "bundle"
    found = told("package", "demo", "--target", "android-cpu", *QUICK, "--out", out)
    assert {*found["models"]} == {"target"}
    assert {*json.loads((out / "native/native.json").read_text(encoding="utf-8"))["models"]} == {"target"}
    assert not (out / "native/draft").exists()


def test_a_head_takes_the_drafts_place(tmp_path: Path, told: Told, program: Path) -> None:
    pytest.importorskip("torch", reason="the export extras are not installed")
    from tests.export.heads.written import TinyHead, write_flat

    pack, out = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "pack")), tmp_path / "bundle"
    head = write_flat(tmp_path / "head", TinyHead.of(Manifest.load(pack).models["target"], rows=256))
    assert run("head", "add", pack, head) == 0
    found = told("package", pack, "--target", "android-cpu", *QUICK, "--out", out)
    assert {role: each["rows"] for role, each in found["models"].items()} == {"target": 8192, "head": 256}
    assert (found["plan"]["draft_length"], found["plan"]["drafted_per_second"]) == (0, None)
    assert told("selftest", out, "--program", program)[0]["passed"]


def test_the_app_opens_it_as_planned(bundle: Path) -> None:
    plan = Bundle.load(bundle).plan
    activity = (bundle / "gradle/app/src/main/kotlin/edgedecode/app/MainActivity.kt").read_text(encoding="utf-8")
    assert f'arrayOf<Pair<String, Any?>>("memory" to {plan.budget_nbytes}, "threads" to 4, "experience"' in activity
